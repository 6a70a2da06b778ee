-- Takes what is asked of every bucket, or nothing: one of an entity, or a child's and its parent's.
-- KEYS the buckets; ARGV now, id, whether an answer was lost, then of each bucket what is named.

local now, id = now_ms(ARGV[1]), ARGV[2]
local buckets, lists, at = {}, {}, 4
local has_landed, is_short, overrun = false, false, false
for n, key in ipairs(KEYS) do
  buckets[n] = read(key, now)
  lists[n], at = named(at, 1)
  has_landed = has_landed or remembers(buckets[n], id)
  overrun = overrun or ARGV[3] ~= '0' and is_overrun(buckets[n])
end

local function answer(status)
  local reply = header(status, now, buckets, overrun)
  for n, bucket in ipairs(buckets) do
    state(reply, bucket, lists[n])
  end
  return reply
end

if has_landed then
  overrun = false
  return answer(LANDED)
end
local function is_asked(one)
  return one[1] ~= '0'
end
for n, bucket in ipairs(buckets) do
  local full = configure_all(bucket, lists[n], is_asked)
  if full then
    return { FULL, n, full }
  end
  for _, one in ipairs(lists[n]) do
    local limit, asked = bucket.limits[one.name], tonumber(one[1])
    -- A limit that a parent does not have is not asked of it.
    if not limit and n == 1 and asked > 0 then
      return { UNKNOWN, n, one.name }
    end
    if limit and asked > limit.tokens and asked > 0 then
      is_short = true
    end
  end
end
if is_short then
  local reply = header(SHORT, now, buckets, overrun)
  for n, key in ipairs(KEYS) do
    reply[#reply + 1] = refused(key, now, lists[n], is_asked).raw
  end
  return reply
end
for n, bucket in ipairs(buckets) do
  local has_any = false
  for _, one in ipairs(lists[n]) do
    local limit, asked = bucket.limits[one.name], tonumber(one[1])
    if limit and asked > 0 then
      take(limit, asked, asked)
      has_any = true
    end
  end
  if has_any then
    write(bucket, id)
  end
end
return answer(GRANTED)
