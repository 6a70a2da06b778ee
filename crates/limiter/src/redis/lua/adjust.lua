-- Corrects a grant; never refuses. A missing bucket had expired: it is created anew, full. KEYS:
-- the bucket. ARGV: as for `acquire.lua`. A lost attempt may arrive late, after four other writes:
-- a correction that gives back is then counted as ambiguous.

local id, list, now, lost = ARGV[1], asked(ARGV[3], 1)
local bucket = read(KEYS[1], now)

local gives_back = false
for _, one in ipairs(list) do
  gives_back = gives_back or one[1] < 0
end
if remembers(bucket, id) then
  -- The bucket shows one of the lost attempts.
  return answer(LANDED, now, { bucket }, gives_back and lost > 1)
end
local overrun = lost > 0 and is_overrun(bucket)
if overrun and gives_back then
  return answer(AMBIGUOUS, now, { bucket }, true)
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
local reply = answer(GRANTED, now, { bucket }, overrun or has_any and gives_back and lost > 0)
for _, name in ipairs(dropped) do
  reply[#reply + 1] = name
end
return reply
