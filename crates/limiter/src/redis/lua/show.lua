-- A bucket for people to read, as names and values in turn:
-- redis-cli --eval show.lua 'sluicegate:{user-123}#gpt-4'
-- Milliseconds and millitokens. A rule is its capacity, burst, refill amount and period; that of a
-- calendar limit is its amount and its calendar.

local value, shown = redis.call('GET', KEYS[1]), {}
if not value then
  return shown
end
local function show(name, text)
  shown[#shown + 1], shown[#shown + 2] = name, text
end

-- high * 10^15 + low, where low is not negative.
local function counter(low, high)
  local sign = high < 0 and '-' or ''
  if high < 0 and low > 0 then
    low, high = 1e15 - low, high + 1
  end
  if high == 0 then
    return string.format('%s%.0f', sign, low)
  end
  return string.format('%s%.0f%015.0f', sign, math.abs(high), low)
end

local count, size = struct.unpack('<BHB', value, #value - 3)
local rules, at = string.sub(value, -size), 24 * count + 1
show('ids', (string.gsub(string.sub(value, 1, 48), '[. ]+', ' ')))
show('lastRefill', string.format('%.0f', (struct.unpack('<d', value, 49))))
for i = 1, count do
  local tokens, low, high = struct.unpack('<ddd', value, 33 + 24 * i)
  local burst, amount, period = struct.unpack('<ddd', rules, 24 * i - 23)
  local name, capacity, scale
  name, capacity, scale, at = struct.unpack('<sdd', rules, at)
  local calendar
  if scale == 0 then
    calendar, at = struct.unpack('<s', rules, at)
  end
  show('tokens:' .. name, string.format('%.0f', tokens))
  show('tc:' .. name, counter(low, high))
  local numbers = string.format('%.0f %.0f %.0f %.0f', capacity, burst, amount * scale, period * scale)
  show('rule:' .. name, calendar and string.format('%.0f %s', burst, calendar) or numbers)
end
show('leases', string.sub(value, 57 + 24 * count, -size - 1))
return shown
