-- Settles what became of earlier leases and takes another, in one write.
-- KEYS the bucket; ARGV now, id, '' or how an answer was lost (SENT: to this call; GIVEN_UP: to an
-- earlier one, and where the lease is short only the rest is done), ids that the bucket remembered
-- before, then what is named: of each limit the least and the most that is wanted, what comes back,
-- and what to count ('': what is leased less what comes back).

-- A lease takes one part in so many of what is there: others on the bucket find something, too.
local SHARE, GIVEN_UP = 4, 'given up'

local now, id = now_ms(ARGV[1]), ARGV[2]
local is_doubtful, is_given_up = ARGV[3] ~= '', ARGV[3] == GIVEN_UP
local bucket, list = read(KEYS[1], now), named(5, 4)

local function answer(status, leased)
  local reply = header(status, now, { bucket })
  state(reply, bucket, list)
  for _, one in ipairs(list) do
    reply[#reply + 1] = leased[one.name] or 0
  end
  return reply
end

if remembers(bucket, id) then
  return answer(LANDED, lease_of(bucket, id))
end
if is_doubtful and has_forgotten(bucket, ARGV[4]) then
  return header(AMBIGUOUS, now, { bucket }, true)
end
local function is_asked(one)
  return one[2] ~= '0'
end
local full = configure_all(bucket, list, is_asked)
if full then
  return { FULL, 1, full }
end
local is_short = false
for _, one in ipairs(list) do
  local limit, least, most = bucket.limits[one.name], tonumber(one[1]), tonumber(one[2])
  if not limit and most > 0 and not is_given_up then
    return { UNKNOWN, 1, one.name }
  end
  if limit then
    limit.tokens = math.min(limit.tokens + tonumber(one[3]), limit.bx)
    is_short = is_short or least > 0 and least > limit.tokens
  end
end
if is_short and not is_given_up then
  local before = refused(KEYS[1], now, list, is_asked)
  local reply = header(SHORT, now, { before })
  reply[#reply + 1] = before.raw
  return reply
end
-- An attempt that may still come finds the id.
local leased, has_any = {}, is_doubtful
for _, one in ipairs(list) do
  local limit = bucket.limits[one.name]
  if limit then
    local least, most, returned = tonumber(one[1]), tonumber(one[2]), tonumber(one[3])
    local share = math.min(most, math.floor(limit.tokens / SHARE))
    local amount = is_short and 0 or math.max(least, share)
    local counted = one[4] == '' and amount - returned or tonumber(one[4])
    has_any = has_any or amount ~= 0 or returned ~= 0 or counted ~= 0
    leased[one.name] = amount > 0 and amount or nil
    take(limit, amount, counted)
  end
end
if not has_any then
  return answer(NOTHING, leased)
end
write(bucket, id, leased)
return answer(GRANTED, leased)
