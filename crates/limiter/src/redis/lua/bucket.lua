-- Reads, changes and writes buckets. `value.rs` has the layout of a bucket's value.
-- Every number is an integer that a double holds exactly; the caller has checked the ranges.
--
-- A limit is a table. Its rule: `bx` burst, `ra` refill amount, `rp` refill period, `cp` capacity,
-- `scale` the divisor that brought `ra` and `rp` to lowest terms. A calendar limit has its `calendar`
-- as a text, a `ra` and a `scale` of zero, and as `rp` its longest period, negative. Its state: `tokens` the balance,
-- `low` and `high` the counter of consumption. `one` is a limit of the request, with its amounts.

local AHEAD_MS, LIMITS_MAX, MOST = 60000, 40, 1e15
-- A counter is high * PART + low, and low is from 0 to PART - 1.
local PART = 1e15
-- The bytes of an id; the four ids of a bucket that remembers none; the bytes before the first limit.
local VERSION, ID, NO_IDS, HEAD = 1, 12, string.rep(' ', 48), 56
local GRANTED, ALREADY_APPLIED, SHORT, UNKNOWN_LIMIT = 0, 1, 2, 3
local BUCKET_FULL, AMBIGUOUS, NOTHING, COUNT_BOUNDARIES = 4, 5, 6, 7
local KEY_REUSED = 8

-- The integer part of a / b. fmod is exact where a quotient is rounded.
local function whole(a, b)
  return (a - math.fmod(a, b)) / b
end

-- The refill: the difference of two accruals since the epoch. Beyond 2^53 the product is rounded,
-- but then the refill exceeds every burst.
local function accrued(since, till, ra, rp)
  if till <= since then
    return 0
  end
  return (whole(till, rp) - whole(since, rp)) * ra
    + whole(math.fmod(till, rp) * ra, rp)
    - whole(math.fmod(since, rp) * ra, rp)
end

-- The caller's time, or this server's if the caller sends none.
local function now_ms(now)
  if now >= 0 then
    return now
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + whole(tonumber(time[2]), 1000)
end

-- The limits that the rules name, in their order. A negative burst marks a limit without a rule.
local function limits_of(rules, count)
  local limits, at = {}, 24 * count + 1
  for i = 1, count do
    local limit = {}
    limit.bx, limit.ra, limit.rp = struct.unpack('<ddd', rules, 24 * i - 23)
    limit.name, limit.cp, limit.scale, at = struct.unpack('<sdd', rules, at)
    if limit.scale == 0 then
      limit.calendar, at = struct.unpack('<s', rules, at)
    end
    limits[i] = limit
  end
  return limits
end

-- Unpacks the request for a bucket. Returns its limits, each with its rule and `width` amounts, then
-- the time, and the number of earlier attempts that are in doubt.
local function unpack_request(packed, width)
  local now, in_doubt, count = struct.unpack('<ddd', packed)
  local list = limits_of(string.sub(packed, 25 + 8 * width * count), count)
  for i, one in ipairs(list) do
    for k = 1, width do
      one[k] = struct.unpack('<d', packed, 8 * (width * (i - 1) + k) + 17)
    end
  end
  return list, now_ms(now), in_doubt
end

local function broken(key)
  local what = 'BROKEN the value of ' .. key
  -- Before Redis 7, which has REDIS_VERSION_NUM, an error is a text.
  error(redis.REDIS_VERSION_NUM and { err = what } or what, 0)
end

-- The number of boundaries of a calendar after `last`, up to `now`. nil: the caller must count them.
--
-- `packed` has the counts after the instant `from`. They hold from `start` until `till`, a span in which
-- none of these calendars has a boundary. nil: the caller has no calendars.
local function boundaries(packed, calendar, last, now)
  if now <= last then
    return 0
  end
  local from, start, till, count, at = 0, 0, 0, 0, 1
  if packed then
    from, start, till, count, at = struct.unpack('<dddd', packed)
  end
  if now < start or now >= till then
    return nil
  end
  for _ = 1, count do
    local known, counted
    known, counted, at = struct.unpack('<sd', packed, at)
    if known == calendar then
      return last >= start and 0 or last == from and counted or nil
    end
  end
end

-- The balance of a calendar limit after so many boundaries.
local function refilled_by_calendar(limit, count)
  local forgives = string.sub(limit.calendar, -14) == ',debt=forgiven'
  local tokens = count > 0 and forgives and math.max(limit.tokens, 0) or limit.tokens
  return tokens + count * limit.bx
end

-- The bucket with all refill up to now. It `is_uncounted` if it has boundaries that `packed` does not
-- count.
local function read(key, now, packed)
  local value = redis.call('GET', key)
  local bucket = { key = key, value = value, ids = NO_IDS, leases = '', last = now }
  bucket.order, bucket.limits, bucket.is_new, bucket.calendars = {}, {}, not value, {}
  if not value then
    return bucket
  end
  local count, size, version, head = 0, 0, 0, HEAD
  if #value >= head + 4 then
    count, size, version = struct.unpack('<BHB', value, #value - 3)
    head = head + 24 * count
  end
  if version ~= VERSION or size < 41 * count + 4 or head + size > #value then
    broken(key)
  end
  bucket.ids, bucket.leases = string.sub(value, 1, 4 * ID), string.sub(value, head + 1, -size - 1)
  local last = struct.unpack('<d', value, HEAD - 7)
  bucket.refilled_at, bucket.is_ahead = last, last > now + AHEAD_MS
  bucket.last = bucket.is_ahead and now or math.max(now, last)
  bucket.order = limits_of(string.sub(value, -size), count)
  for i, limit in ipairs(bucket.order) do
    limit.tokens, limit.low, limit.high = struct.unpack('<ddd', value, HEAD + 24 * i - 23)
    if limit.calendar then
      local count = boundaries(packed, limit.calendar, last, bucket.last)
      bucket.is_uncounted = bucket.is_uncounted or not count
      bucket.calendars[#bucket.calendars + 1] = limit.calendar
      limit.tokens = refilled_by_calendar(limit, count or 0)
    else
      limit.tokens = limit.tokens + accrued(last, bucket.last, limit.ra, limit.rp)
    end
    limit.tokens = math.min(limit.tokens, limit.bx)
    bucket.limits[limit.name] = limit
  end
  return bucket
end

local function remembers(bucket, id)
  for at = 1, #NO_IDS, ID do
    if string.sub(bucket.ids, at, at + ID - 1) == id then
      return true
    end
  end
  return false
end

-- For an id that the bucket does not show. True if the bucket may have forgotten this id: it is new,
-- or four ids came since.
local function may_have_forgotten(bucket)
  return bucket.is_new or string.sub(bucket.ids, -ID) ~= string.sub(NO_IDS, -ID)
end

-- For an id that the bucket does not show. True if it surely may have: it also shows none of
-- `before`, the ids that it had when the id was sent.
--
-- False for a new bucket. The old one was full when it expired, and the effects of the id are gone
-- with it, so a lease can be done again. `may_have_forgotten` is true there, because a repeated
-- acquire or correction is only reported as ambiguous, or refused if it gives tokens back.
local function is_ambiguous(bucket, before)
  if bucket.is_new or not may_have_forgotten(bucket) then
    return false
  end
  for id in string.gmatch(before, '%S+') do
    if remembers(bucket, id) then
      return false
    end
  end
  return true
end

-- The amounts that the write of this id leased, by limit.
local function lease_of(bucket, id)
  local leased = {}
  for entry in string.gmatch(bucket.leases, '[^;]+') do
    local of, amounts = string.match(entry, '^(%S+)(.*)$')
    if of == id then
      for name, amount in string.gmatch(amounts, '(%S+) (%S+)') do
        leased[name] = tonumber(amount)
      end
    end
  end
  return leased
end

-- The leases whose ids are remembered, with this one: `id limit amount limit amount;` of each.
local function with_lease(bucket, id, leased)
  local words = { id }
  for name, amount in pairs(leased) do
    words[#words + 1] = name .. string.format(' %.0f', amount)
  end
  local kept = #words > 1 and table.concat(words, ' ') .. ';' or ''
  for entry in string.gmatch(bucket.leases, '[^;]+;') do
    if remembers(bucket, string.sub(entry, 1, ID)) then
      kept = kept .. entry
    end
  end
  return kept
end

local function is_same(limit, rule)
  return limit.bx == rule.bx and limit.ra == rule.ra and limit.rp == rule.rp
    and limit.cp == rule.cp and limit.scale == rule.scale and limit.calendar == rule.calendar
end

-- Gives the bucket this rule. A new limit is full. A calendar limit or a quota that becomes another one
-- keeps what was consumed. A rate that becomes one of these is full, less its debt. A limit that becomes
-- or stays a rate keeps the tokens that fit.
local function configure(bucket, rule)
  local limit = bucket.limits[rule.name]
  if not limit then
    limit = { name = rule.name, tokens = rule.bx, low = 0, high = 0 }
    bucket.limits[rule.name], bucket.order[#bucket.order + 1] = limit, limit
  end
  -- A calendar limit has no `ra`, as a quota.
  if limit.bx and rule.ra == 0 then
    local is_rate = limit.ra > 0
    limit.tokens = rule.bx + (is_rate and math.min(limit.tokens, 0) or limit.tokens - limit.bx)
  end
  limit.bx, limit.ra, limit.rp = rule.bx, rule.ra, rule.rp
  limit.cp, limit.scale, limit.calendar = rule.cp, rule.scale, rule.calendar
  limit.tokens = math.min(limit.tokens, limit.bx)
end

-- Puts the caller's limits first. The caller's next rules then equal the bucket's bytes.
local function sort(bucket, list)
  local order, has = {}, {}
  for _, one in ipairs(list) do
    order[#order + 1], has[one.name] = bucket.limits[one.name], true
  end
  for _, limit in ipairs(bucket.order) do
    order[#order + 1] = not has[limit.name] and limit or nil
  end
  bucket.order = order
end

-- Applies the caller's rules. If they exceed LIMITS_MAX, it applies only those of requested limits.
-- Returns a limit that has no room.
local function configure_all(bucket, list, is_asked)
  local missing = 0
  for _, one in ipairs(list) do
    if one.bx >= 0 and not bucket.limits[one.name] then
      missing = missing + 1
    end
  end
  local is_crowded = #bucket.order + missing > LIMITS_MAX
  for _, one in ipairs(list) do
    if one.bx >= 0 and (bucket.limits[one.name] or not is_crowded or is_asked(one)) then
      if not bucket.limits[one.name] and #bucket.order >= LIMITS_MAX then
        return one.name
      end
      configure(bucket, one)
    end
  end
  sort(bucket, list)
end

-- Seconds until the key may expire: twice the fill time of the slowest limit. A debt lengthens that
-- time. nil: a limit never fills.
local function expiry_s(bucket)
  local longest = 0
  for _, limit in ipairs(bucket.order) do
    local most = math.max(limit.cp, limit.bx) - math.min(limit.tokens, 0)
    if limit.calendar then
      longest = math.max(longest, math.ceil(math.ceil(most / limit.bx) * -limit.rp / 1000))
    elseif limit.ra == 0 then
      return nil
    else
      longest = math.max(longest, math.ceil(most * limit.rp / (limit.ra * 1000)))
    end
  end
  return math.max(1, math.min(2 * longest, 1e11))
end

-- Writes the balances, the counters and, for a lease, its amounts.
local function write(bucket, id, leased)
  local numbers, rules, names = {}, {}, {}
  for i, limit in ipairs(bucket.order) do
    local low = math.fmod(limit.low, PART)
    low = low < 0 and low + PART or low
    local high = limit.high + (limit.low - low) / PART
    numbers[i] = struct.pack('<ddd', math.max(limit.tokens, -MOST), low, high)
    rules[i] = struct.pack('<ddd', limit.bx, limit.ra, limit.rp)
    names[i] = struct.pack('<sdd', limit.name, limit.cp, limit.scale)
      .. (limit.calendar and struct.pack('<s', limit.calendar) or '')
  end
  if id then
    bucket.ids = id .. string.sub(bucket.ids, 1, 3 * ID)
    bucket.leases = with_lease(bucket, id, leased or {})
  end
  local conf = table.concat(rules) .. table.concat(names)
  bucket.value = bucket.ids .. struct.pack('<d', bucket.last) .. table.concat(numbers)
    .. bucket.leases .. conf .. struct.pack('<BHB', #numbers, #conf + 4, VERSION)
  local seconds = expiry_s(bucket)
  if seconds then
    redis.call('SET', bucket.key, bucket.value, 'EX', seconds)
  else
    redis.call('SET', bucket.key, bucket.value)
  end
end

local function take(limit, amount, counted)
  limit.tokens, limit.low = limit.tokens - amount, limit.low + counted
end

-- Reads the bucket of a refused request again. It writes a changed rule, because a bucket that looks
-- short would never get it. It also writes if the clock was ahead, or the refill would stay stopped.
-- It does not write for new limits.
local function refused(key, now, list, is_asked, packed)
  local bucket, is_changed = read(key, now, packed), false
  for _, one in ipairs(list) do
    local limit = bucket.limits[one.name]
    is_changed = is_changed or limit and one.bx >= 0 and not is_same(limit, one)
  end
  if is_changed then
    configure_all(bucket, list, is_asked)
  end
  if is_changed or bucket.is_ahead then
    write(bucket)
  end
  return bucket
end

-- The beginning of every reply, and the stored value of every bucket.
local function answer(status, now, buckets, ambiguous)
  local ahead = 0
  for _, bucket in ipairs(buckets) do
    ahead = bucket.is_ahead and 1 or ahead
  end
  local reply = { status, now, ahead, ambiguous and 1 or 0 }
  for _, bucket in ipairs(buckets) do
    reply[#reply + 1] = bucket.value
  end
  return reply
end

-- Asks the caller to count boundaries: the time, and of each bucket its last refill and its calendars.
-- nil: all are counted.
local function uncounted(now, buckets)
  local reply, is_uncounted = { COUNT_BOUNDARIES, now }, false
  for _, bucket in ipairs(buckets) do
    is_uncounted = is_uncounted or bucket.is_uncounted
    reply[#reply + 1] = bucket.refilled_at or now
    reply[#reply + 1] = table.concat(bucket.calendars, ' ')
  end
  return is_uncounted and reply or nil
end
