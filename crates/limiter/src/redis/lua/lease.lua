-- Settles earlier leases and takes another, in one write. KEYS: the bucket. ARGV: the id; the
-- packed request, with four amounts per limit (the least and the most that is wanted, the amount
-- given back, the amount used); '' or how an answer was lost (SENT: to this call; GIVEN_UP: to an
-- earlier one, and if the lease is short only the rest is done); the ids that the bucket remembered
-- before; and what to count: the amounts USED, or else the leased amounts less those given back.

-- Beyond the least that is wanted, a lease takes at most one part in so many of the balance: other
-- processes on the bucket find tokens too.
local SHARE, GIVEN_UP, USED = 4, 'given up', 'used'

local id, list, now = ARGV[1], asked(ARGV[2], 4)
local is_doubtful, is_given_up = ARGV[3] ~= '', ARGV[3] == GIVEN_UP
local bucket = read(KEYS[1], now)

local function answer_leased(status, leased)
  local reply = answer(status, now, { bucket })
  for _, one in ipairs(list) do
    reply[#reply + 1] = leased[one.name] or 0
  end
  return reply
end

if remembers(bucket, id) then
  return answer_leased(LANDED, lease_of(bucket, id))
end
if is_doubtful and has_forgotten(bucket, ARGV[4]) then
  return answer(AMBIGUOUS, now, { bucket }, true)
end
local function is_asked(one)
  return one[2] > 0
end
local full = configure_all(bucket, list, is_asked)
if full then
  return { FULL, 1, full }
end
local is_short = false
for _, one in ipairs(list) do
  local limit = bucket.limits[one.name]
  if not limit and is_asked(one) and not is_given_up then
    return { UNKNOWN, 1, one.name }
  end
  if limit then
    limit.tokens = math.min(limit.tokens + one[3], limit.bx)
    is_short = is_short or one[1] > 0 and one[1] > limit.tokens
  end
end
if is_short and not is_given_up then
  return answer(SHORT, now, { refused(KEYS[1], now, list, is_asked) })
end
-- A late attempt must find the id.
local leased, has_any = {}, is_doubtful
for _, one in ipairs(list) do
  local limit = bucket.limits[one.name]
  if limit then
    local share = math.min(one[2], math.floor(limit.tokens / SHARE))
    local amount = is_short and 0 or math.max(one[1], share)
    local counted = ARGV[5] == USED and one[4] or amount - one[3]
    has_any = has_any or amount ~= 0 or one[3] ~= 0 or counted ~= 0
    leased[one.name] = amount > 0 and amount or nil
    take(limit, amount, counted)
  end
end
if not has_any then
  return answer_leased(NOTHING, leased)
end
write(bucket, id, leased)
return answer_leased(GRANTED, leased)
