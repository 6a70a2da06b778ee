-- Decides the usual acquire or correction: every bucket exists, follows the caller's limits, holds
-- no leases and does not remember the id. The whole script below decides everything else, and would
-- decide this the same. KEYS and ARGV are those of `acquire.lua`. Nothing above the whole script's
-- first line makes a function, or a table per limit: that would cost more than this decision.
-- CORRECTS is defined in front of it.

do
  local call, pack, unpack_of, sub, fmod = redis.call, struct.pack, struct.unpack, string.sub, math.fmod
  local id, seen, is_short, now = ARGV[1], 0, false, nil
  local before, after = { false, false }, { false, false }
  for n = 1, #KEYS do
    local value, ask = call('GET', KEYS[n]), ARGV[2 * n + 1]
    local time, lost, count = unpack_of('<ddd', ask)
    local head, rules = 56 + 24 * count, sub(ask, 25 + 8 * count)
    -- A value begins with its ids and ends with its rules.
    if not value or lost > 0 or #value ~= head + #rules
      or not string.find(value, rules, head + 1, true) or string.find(value, id, 1, true) then
      break
    end
    now = now or time
    if now < 0 then
      local server = call('TIME')
      now = server[1] * 1000 + math.floor(server[2] / 1000)
    end
    local last, state, has_any = unpack_of('<d', value, 49), '', false
    local is_usual = last <= now + 60000
    for i = 1, count do
      local amount = unpack_of('<d', ask, 17 + 8 * i)
      local tokens, low, high = unpack_of('<ddd', value, 33 + 24 * i)
      local burst, ra, rp = unpack_of('<ddd', rules, 24 * i - 23)
      if now > last then
        local x, y = fmod(now, rp), fmod(last, rp)
        local xa, ya = x * ra, y * ra
        tokens = tokens + (now - x - (last - y)) / rp * ra
          + (xa - fmod(xa, rp) - (ya - fmod(ya, rp))) / rp
      end
      tokens = (tokens < burst and tokens or burst) - amount
      tokens, low = tokens < burst and tokens or burst, low + amount
      -- A debt lengthens the expiry; a counter outside these bounds needs a carry.
      is_usual = is_usual and low >= 0 and low < 1e15
        and (tokens >= 0 or amount > 0 and not CORRECTS)
      is_short, has_any = is_short or tokens < 0, has_any or amount ~= 0
      state = state .. pack('<ddd', tokens, low, high)
    end
    if not is_usual or not has_any then
      break
    end
    seen, before[n] = n, value
    after[n] = id .. sub(value, 1, 36) .. pack('<d', now > last and now or last) .. state .. rules
  end
  if seen == #KEYS and is_short then
    return { 2, now, 0, 0, unpack(before, 1, seen) }
  end
  if seen == #KEYS then
    for n = 1, seen do
      local seconds = ARGV[2 * n]
      if seconds == '' then
        call('SET', KEYS[n], after[n])
      else
        call('SET', KEYS[n], after[n], 'EX', seconds)
      end
    end
    return seen > 1 and after or after[1]
  end
end
