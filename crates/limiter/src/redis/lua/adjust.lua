-- Corrects a grant; never refuses. A missing bucket had expired: it is created anew, full.
--
-- KEYS[1]: the bucket. ARGV: as for `acquire.lua`.
-- KEYS[2]: the mark of a correction that is made once. ARGV[2]: the time for which it is kept, in
-- milliseconds, a space, and its fingerprint, which is its value.
--
-- An attempt in doubt may arrive late, after four other writes. A correction that gives back then
-- counts as ambiguous.

local id, list, now, in_doubt = ARGV[1], unpack_request(ARGV[3], 1)
local bucket = read(KEYS[1], now, ARGV[4])

local mark, kept, fingerprint = KEYS[2], nil, nil
if mark then
  kept, fingerprint = string.match(ARGV[2], '^(%d+) (.*)$')
  local made = redis.call('GET', mark)
  if made then
    return answer(made == fingerprint and ALREADY_APPLIED or KEY_REUSED, now, { bucket })
  end
end
local gives_back = false
for _, one in ipairs(list) do
  gives_back = gives_back or one[1] < 0
end
if remembers(bucket, id) then
  -- One of the attempts in doubt took effect.
  return answer(ALREADY_APPLIED, now, { bucket }, gives_back and in_doubt > 1)
end
local ambiguous = in_doubt > 0 and may_have_forgotten(bucket)
if ambiguous and gives_back then
  return answer(AMBIGUOUS, now, { bucket }, true)
end
local question = uncounted(now, { bucket })
if question then
  return question
end
local dropped, has_any = {}, false
if bucket.is_new then
  configure_all(bucket, list, function(one) return one[1] ~= 0 end)
end
for _, one in ipairs(list) do
  local limit, by = bucket.limits[one.name], one[1]
  if limit and by ~= 0 then
    take(limit, by, by)
    limit.tokens, has_any = math.min(limit.tokens, limit.bx), true
  elseif by ~= 0 then
    dropped[#dropped + 1] = one.name
  end
end
if has_any then
  write(bucket, id)
end
-- If no limit was corrected, there is no mark: the same correction can be made once an acquire has
-- added the limits.
if mark and (has_any or #dropped == 0) then
  redis.call('SET', mark, fingerprint, 'PX', kept)
end
local reply = answer(GRANTED, now, { bucket }, ambiguous or has_any and gives_back and in_doubt > 0)
for _, name in ipairs(dropped) do
  reply[#reply + 1] = name
end
return reply
