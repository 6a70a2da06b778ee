-- The plain script: one limit in two fields, without ids, counters or exact arithmetic. The
-- acquires of this project are compared with it.
-- KEYS the bucket; ARGV capacity, tokens a second, tokens asked.

local capacity, rate, asked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'lastRefill')
local tokens, last = tonumber(stored[1]) or capacity, tonumber(stored[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - last) * rate / 1000)
local is_allowed = tokens >= asked
if is_allowed then
  tokens = tokens - asked
end
redis.call('HMSET', KEYS[1], 'tokens', tokens, 'lastRefill', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / rate) * 2)
return { is_allowed and 1 or 0, tokens }
