-- Corrects what was taken, never refused. A bucket that went is made anew, full: it had expired.
-- KEYS the bucket; ARGV now, id, how many answers were lost, then what is named. A lost attempt may
-- come late, once four others have written: what gives back is then counted as ambiguous.

local now, id, lost = now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local bucket, list = read(KEYS[1], now), named(4, 1)

-- Whether it was done, how the bucket stands, and the limits that it does not have.
local function answer(status, overrun, dropped)
  local reply = header(status, now, { bucket }, overrun)
  state(reply, bucket, list)
  for _, name in ipairs(dropped) do
    reply[#reply + 1] = name
  end
  return reply
end

local gives_back = false
for _, one in ipairs(list) do
  gives_back = gives_back or tonumber(one[1]) < 0
end
if remembers(bucket, id) then
  -- One of the lost attempts is what the bucket shows.
  return answer(LANDED, gives_back and lost > 1, {})
end
local overrun = lost > 0 and is_overrun(bucket)
local dropped, has_any = {}, false
if bucket.is_new then
  configure_all(bucket, list, function(one) return one[1] ~= '0' end)
end
for _, one in ipairs(list) do
  local limit, by = bucket.limits[one.name], tonumber(one[1])
  if by < 0 and overrun then
    return answer(AMBIGUOUS, overrun, {})
  end
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
return answer(GRANTED, overrun or has_any and gives_back and lost > 0, dropped)
