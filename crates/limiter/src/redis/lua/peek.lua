-- The buckets as they are stored. KEYS the buckets; ARGV now.

local reply = header(GRANTED, now_ms(ARGV[1]), {})
for _, key in ipairs(KEYS) do
  reply[#reply + 1] = redis.call('HGETALL', key)
end
return reply
