-- Takes the requested amounts from every bucket, or nothing: from an entity's bucket, or from a
-- child's and its parent's.
--
-- KEYS: the buckets.
-- ARGV[1]: the id.
-- For each bucket then two arguments:
--   the seconds that it is kept without a debt; '': for ever
--   the packed request, with one amount of each limit
-- If there are calendar limits, for each bucket then one argument: the counted boundaries.

local id, now, in_doubt = ARGV[1], nil, 0
local buckets, lists = {}, {}
local is_applied, is_short, ambiguous = false, false, false
for n, key in ipairs(KEYS) do
  local list, time
  list, time, in_doubt = unpack_request(ARGV[2 * n + 1], 1)
  now = now or time
  buckets[n], lists[n] = read(key, now, ARGV[2 * #KEYS + 1 + n]), list
  is_applied = is_applied or remembers(buckets[n], id)
  ambiguous = ambiguous or in_doubt > 0 and may_have_forgotten(buckets[n])
end
if is_applied then
  return answer(ALREADY_APPLIED, now, buckets)
end
local question = uncounted(now, buckets)
if question then
  return question
end
local function is_asked(one)
  return one[1] > 0
end
for n, bucket in ipairs(buckets) do
  local full = configure_all(bucket, lists[n], is_asked)
  if full then
    return { BUCKET_FULL, n, full }
  end
  for _, one in ipairs(lists[n]) do
    local limit = bucket.limits[one.name]
    -- A parent is not asked for a limit that it does not have.
    if not limit and n == 1 and is_asked(one) then
      return { UNKNOWN_LIMIT, n, one.name }
    end
    is_short = is_short or limit and is_asked(one) and one[1] > limit.tokens
  end
end
if is_short then
  for n, key in ipairs(KEYS) do
    buckets[n] = refused(key, now, lists[n], is_asked, ARGV[2 * #KEYS + 1 + n])
  end
  return answer(SHORT, now, buckets, ambiguous)
end
for n, bucket in ipairs(buckets) do
  local has_any = false
  for _, one in ipairs(lists[n]) do
    local limit = bucket.limits[one.name]
    if limit and is_asked(one) then
      take(limit, one[1], one[1])
      has_any = true
    end
  end
  if has_any then
    write(bucket, id)
  end
end
return answer(GRANTED, now, buckets, ambiguous)
