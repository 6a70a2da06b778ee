-- One bucket: a hash with one lastRefill, tokens and tc of every limit, its rule, the last ids, and
-- what the last leases took.
-- Every number is an integer that a double holds exactly; whoever calls has checked the ranges.

local AHEAD_MS, LIMITS_MAX, MOST = 60000, 40, 1e15
-- The largest double that is a 64-bit integer.
local COUNTED_MOST = 9223372036854774784
local GRANTED, LANDED, SHORT, UNKNOWN, FULL, AMBIGUOUS, NOTHING = 0, 1, 2, 3, 4, 5, 6

-- The whole part of a / b. fmod is exact where a quotient is rounded.
local function whole(a, b)
  return (a - math.fmod(a, b)) / b
end

-- What accrued: the difference of two accruals since the epoch. Where the product is rounded it is
-- beyond every burst.
local function accrued(since, till, ra, rp)
  if till <= since then
    return 0
  end
  return (whole(till, rp) - whole(since, rp)) * ra
    + whole(math.fmod(till, rp) * ra, rp)
    - whole(math.fmod(since, rp) * ra, rp)
end

-- The caller's time, or this server's where it sends none.
local function now_ms(text)
  if text ~= '' then
    return tonumber(text)
  end
  local time = redis.call('TIME')
  return time[1] * 1000 + whole(tonumber(time[2]), 1000)
end

local function broken(bucket, field)
  local what = 'BROKEN ' .. field .. ' of ' .. bucket.key
  -- Before 7, which names its version, an error is a text.
  error(redis.REDIS_VERSION_NUM and { err = what } or what, 0)
end

-- The rate is the last two, in lowest terms.
local function rule_of(text)
  local cp, bx, ra, rp = string.match(text, '^(%d+) (%d+) %d+ %d+ (%d+) (%d+)$')
  return { rule = text, cp = tonumber(cp), bx = tonumber(bx), ra = tonumber(ra), rp = tonumber(rp) }
end

-- A bucket of one limit has the plain names.
local function suffix(bucket, name)
  return bucket.count > 1 and ':' .. name or ''
end

-- The bucket with all refill up to now.
local function read(key, now)
  local raw = redis.call('HGETALL', key)
  local bucket = { key = key, raw = raw, fields = {}, limits = {}, count = 0, is_new = #raw == 0 }
  local fields, limits = bucket.fields, bucket.limits
  for i = 1, #raw, 2 do
    local field, value = raw[i], raw[i + 1]
    fields[field] = value
    if string.sub(field, 1, 5) == 'rule:' then
      local limit = rule_of(value)
      if not limit.rp then
        broken(bucket, field)
      end
      limits[string.sub(field, 6)] = limit
      bucket.count = bucket.count + 1
    end
  end
  local last = tonumber(fields.lastRefill)
  if not last and not bucket.is_new then
    broken(bucket, 'lastRefill')
  end
  last = last or now
  bucket.is_ahead = last > now + AHEAD_MS
  bucket.last = bucket.is_ahead and now or math.max(now, last)
  for name, limit in pairs(limits) do
    limit.suffix = suffix(bucket, name)
    limit.tc = fields['tc' .. limit.suffix] or '0'
    local tokens = tonumber(fields['tokens' .. limit.suffix])
    if not tokens then
      broken(bucket, 'tokens' .. limit.suffix)
    end
    limit.tokens = math.min(tokens + accrued(last, bucket.last, limit.ra, limit.rp), limit.bx)
  end
  return bucket
end

local function remembers(bucket, id)
  local ids = bucket.fields.ids
  return ids and string.find(' ' .. ids .. ' ', ' ' .. id .. ' ', 1, true)
end

-- Whether an id that is not remembered may have been: four others came since, or the bucket went.
local function is_overrun(bucket)
  return bucket.is_new or string.find(bucket.fields.ids or '', '%S+ %S+ %S+ %S')
end

-- Whether an id that is not remembered may have been, by what was remembered before it.
local function has_forgotten(bucket, before)
  if bucket.is_new or not is_overrun(bucket) then
    return false
  end
  for id in string.gmatch(before, '%S+') do
    if remembers(bucket, id) then
      return false
    end
  end
  return true
end

-- What the write of this id leased, by limit.
local function lease_of(bucket, id)
  local leased = {}
  for entry in string.gmatch(bucket.fields.leases or '', '[^;]+') do
    local of, amounts = string.match(entry, '^(%S+)(.*)$')
    if of == id then
      for name, amount in string.gmatch(amounts, '(%S+) (%S+)') do
        leased[name] = tonumber(amount)
      end
    end
  end
  return leased
end

-- The last four leases with this one, newest first: `id limit amount limit amount;...`.
local function with_lease(bucket, id, leased)
  local words = { id }
  for name, amount in pairs(leased) do
    words[#words + 1] = name .. string.format(' %.0f', amount)
  end
  local entry, before = table.concat(words, ' '), bucket.fields.leases
  return before and entry .. ';' .. string.match(before, '^[^;]*;?[^;]*;?[^;]*') or entry
end

-- Gives the bucket this rule of a limit: a new limit is full, a changed one keeps what fits.
local function configure(bucket, name, rule)
  local before = bucket.limits[name]
  if before and before.rule == rule then
    return
  end
  local limit = rule_of(rule)
  limit.is_changed = true
  if before then
    limit.tokens, limit.tc, limit.suffix = math.min(before.tokens, limit.bx), before.tc, before.suffix
  else
    limit.tokens, limit.tc, bucket.count = limit.bx, '0', bucket.count + 1
  end
  bucket.limits[name] = limit
end

-- What is named of a bucket in ARGV: how many limits, then name, rule ('' for none) and `width`
-- amounts of each.
local function named(at, width)
  local list = {}
  for i = 1, tonumber(ARGV[at]) do
    local from = at + 1 + (i - 1) * (2 + width)
    local one = { name = ARGV[from], rule = ARGV[from + 1] }
    for n = 1, width do
      one[n] = ARGV[from + 1 + n]
    end
    list[i] = one
  end
  return list, at + 1 + #list * (2 + width)
end

-- Brings the bucket to the rules that are named. Where it has no room for all, to those of
-- what is asked; the name of a limit that has none.
local function configure_all(bucket, list, is_asked)
  local missing = 0
  for _, one in ipairs(list) do
    if one.rule ~= '' and not bucket.limits[one.name] then
      missing = missing + 1
    end
  end
  local is_crowded = bucket.count + missing > LIMITS_MAX
  for _, one in ipairs(list) do
    if one.rule ~= '' and (bucket.limits[one.name] or not is_crowded or is_asked(one)) then
      if not bucket.limits[one.name] and bucket.count >= LIMITS_MAX then
        return one.name
      end
      configure(bucket, one.name, one.rule)
    end
  end
end

-- Seconds until the key may go: twice what the slowest limit needs to fill from empty, debt
-- included. nil: one never fills.
local function expiry_s(bucket)
  local longest = 0
  for _, limit in pairs(bucket.limits) do
    if limit.ra == 0 then
      return nil
    end
    local most = math.max(limit.cp, limit.bx) - math.min(limit.tokens, 0)
    longest = math.max(longest, math.ceil(most * limit.rp / (limit.ra * 1000)))
  end
  return math.max(1, math.min(2 * longest, 1e11))
end

-- Writes what is there now, what was counted since and, of a lease, what it took.
local function write(bucket, id, leased)
  local values, counted = { 'lastRefill', bucket.last }, {}
  local function set(field, value)
    values[#values + 1] = field
    values[#values + 1] = value
  end
  for name, limit in pairs(bucket.limits) do
    local own = suffix(bucket, name)
    set('tokens' .. own, math.max(limit.tokens, -MOST))
    if limit.is_changed then
      set('rule:' .. name, limit.rule)
    end
    if limit.suffix ~= own then
      set('tc' .. own, limit.tc)
      if limit.suffix then
        redis.call('HDEL', bucket.key, 'tokens' .. limit.suffix, 'tc' .. limit.suffix)
      end
    end
    if limit.counted then
      counted['tc' .. own] = limit.counted
    end
  end
  if id then
    local ids = bucket.fields.ids
    set('ids', ids and id .. ' ' .. string.match(ids, '^%S* ?%S* ?%S*') or id)
  end
  if leased and next(leased) then
    set('leases', with_lease(bucket, id, leased))
  end
  redis.call('HSET', bucket.key, unpack(values))
  -- In the server, whose integers have 64 bits. A counter stays at the end of its range.
  for field, by in pairs(counted) do
    local sum = redis.pcall('HINCRBY', bucket.key, field, by)
    if type(sum) == 'table' and string.find(sum.err, 'overflow', 1, true) then
      redis.call('HSET', bucket.key, field, by > 0 and '9223372036854775807' or '-9223372036854775808')
    elseif type(sum) == 'table' then
      -- Before Redis 7 an error that is a table loses its message.
      error(redis.REDIS_VERSION_NUM and sum or sum.err, 0)
    end
  end
  local seconds = expiry_s(bucket)
  if seconds then
    redis.call('EXPIRE', bucket.key, seconds)
  else
    redis.call('PERSIST', bucket.key)
  end
end

local function take(limit, amount, counted)
  limit.tokens = limit.tokens - amount
  if counted ~= 0 then
    limit.counted = counted
  end
end

-- The bucket of a request that is refused. A rule that changed is kept all the same, or it would
-- never reach a bucket that looks short; so is the time where a clock that was ahead has stopped
-- refill. Limits that the bucket lacks are no reason for a write.
local function refused(key, now, list, is_asked)
  local bucket, is_changed = read(key, now), false
  for _, one in ipairs(list) do
    local limit = bucket.limits[one.name]
    is_changed = is_changed or limit and one.rule ~= '' and limit.rule ~= one.rule
  end
  if is_changed then
    configure_all(bucket, list, is_asked)
  end
  if is_changed or bucket.is_ahead then
    write(bucket)
    bucket.raw = redis.call('HGETALL', key)
  end
  return bucket
end

-- What every answer begins with.
local function header(status, now, buckets, overrun)
  local ahead = 0
  for _, bucket in ipairs(buckets) do
    ahead = bucket.is_ahead and 1 or ahead
  end
  return { status, now, ahead, overrun and 1 or 0 }
end

-- How the limits that were named stand; the rule of one that came without.
local function state(reply, bucket, list)
  reply[#reply + 1] = bucket.is_new and 1 or 0
  reply[#reply + 1] = bucket.last
  for _, one in ipairs(list) do
    local limit = bucket.limits[one.name]
    reply[#reply + 1] = limit and limit.tokens or false
    local sum = limit and tonumber(limit.tc) + (limit.counted or 0)
    reply[#reply + 1] = limit and math.max(-COUNTED_MOST, math.min(sum, COUNTED_MOST)) or false
    reply[#reply + 1] = limit and one.rule == '' and limit.rule or false
  end
end
