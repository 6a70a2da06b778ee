-- Settles what became of earlier leases and takes another, in one write.
-- KEYS the bucket; ARGV now, id, then what is named: of each limit the least and the most that is
-- wanted, what comes back, and what to count ('': what is leased less what comes back).

-- A lease takes one part in so many of what is there: others on the bucket find something, too.
local SHARE = 4

local now, id = now_ms(ARGV[1]), ARGV[2]
local bucket, list = read(KEYS[1], now), named(3, 4)
if remembers(bucket, id) then
  return header(LANDED, now, { bucket })
end
local full = configure_all(bucket, list, function(one) return one[2] ~= '0' end)
if full then
  return { FULL, 1, full }
end
local leased, has_any = {}, false
for n, one in ipairs(list) do
  local limit, least, most = bucket.limits[one.name], tonumber(one[1]), tonumber(one[2])
  if not limit and most > 0 then
    return { UNKNOWN, 1, one.name }
  end
  if limit then
    local returned = tonumber(one[3])
    local there = math.min(limit.tokens + returned, limit.bx)
    leased[n] = math.max(least, math.min(most, math.floor(there / SHARE)))
    if least > there then
      local before = read(KEYS[1], now)
      put_clock_right(before)
      local reply = header(SHORT, now, { before })
      reply[5] = before.raw
      return reply
    end
    local counted = one[4] == '' and leased[n] - returned or tonumber(one[4])
    has_any = has_any or leased[n] ~= 0 or returned ~= 0 or counted ~= 0
    limit.tokens = there
    take(limit, leased[n], counted)
  end
end
local reply = header(has_any and GRANTED or NOTHING, now, { bucket })
if has_any then
  write(bucket, id)
end
state(reply, bucket, list)
for n in ipairs(list) do
  reply[#reply + 1] = leased[n] or 0
end
return reply
