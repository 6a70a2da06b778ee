-- Settles earlier leases and takes another, in one write.
--
-- KEYS[1]: the bucket.
-- ARGV[1]: the id.
-- ARGV[2]: the packed request, with four amounts of each limit: the least and the most that is
--   wanted, the amount given back, the amount used.
-- ARGV[3]: '': no earlier attempt is in doubt. 'repeats': an attempt of this call is in doubt.
--   'resolves': an earlier call is in doubt; if the lease is short, the script only settles.
-- ARGV[4]: the ids that the bucket remembered before the first attempt, separated by spaces.
-- ARGV[5]: 'used': the used amounts move the counters. '': the leased amounts less those given back.
-- ARGV[6]: the counted boundaries, if there are calendar limits.

-- Beyond the least that is wanted, a lease takes at most a quarter of the balance: other processes on
-- the bucket find tokens too.
local SHARE, RESOLVES, USED = 4, 'resolves', 'used'

local id, list, now = ARGV[1], unpack_request(ARGV[2], 4)
local in_doubt, resolves = ARGV[3] ~= '', ARGV[3] == RESOLVES
local bucket = read(KEYS[1], now, ARGV[6])

local function answer_leased(status, leased, ambiguous)
  local reply = answer(status, now, { bucket }, ambiguous)
  for _, one in ipairs(list) do
    reply[#reply + 1] = leased[one.name] or 0
  end
  return reply
end

if remembers(bucket, id) then
  return answer_leased(ALREADY_APPLIED, lease_of(bucket, id))
end
if in_doubt and is_ambiguous(bucket, ARGV[4]) then
  return answer(AMBIGUOUS, now, { bucket }, true)
end
local question = uncounted(now, { bucket })
if question then
  return question
end
-- What other requests may want beyond the least does not fail this one.
local function is_needed(one)
  local least = one[1]
  return least > 0
end
local full = configure_all(bucket, list, is_needed)
if full then
  return { BUCKET_FULL, 1, full }
end
local is_short = false
for _, one in ipairs(list) do
  local limit = bucket.limits[one.name]
  if not limit and is_needed(one) and not resolves then
    return { UNKNOWN_LIMIT, 1, one.name }
  end
  if limit then
    local least, returned = one[1], one[3]
    limit.tokens = math.min(limit.tokens + returned, limit.bx)
    is_short = is_short or least > 0 and least > limit.tokens
  end
end
if is_short and not resolves then
  return answer(SHORT, now, { refused(KEYS[1], now, list, is_needed, ARGV[6]) })
end
-- A late attempt must find the id.
local leased, has_any, returns_more = {}, in_doubt, false
for _, one in ipairs(list) do
  local limit = bucket.limits[one.name]
  if limit then
    local least, most, returned, used = one[1], one[2], one[3], one[4]
    local share = math.min(most, math.floor(limit.tokens / SHARE))
    local amount = is_short and 0 or math.max(least, share)
    local counted = ARGV[5] == USED and used or amount - returned
    has_any = has_any or amount ~= 0 or returned ~= 0 or counted ~= 0
    returns_more = returns_more or returned > amount
    leased[one.name] = amount > 0 and amount or nil
    take(limit, amount, counted)
  end
end
if not has_any then
  return answer_leased(NOTHING, leased)
end
write(bucket, id, leased)
-- A late attempt may return the same tokens again, once the bucket has forgotten the id.
return answer_leased(GRANTED, leased, in_doubt and returns_more)
