-- The buckets as they are stored. KEYS: the buckets. ARGV[1]: the time.

local buckets = {}
for n, key in ipairs(KEYS) do
  buckets[n] = { value = redis.call('GET', key) }
end
return answer(GRANTED, now_ms(struct.unpack('<d', ARGV[1])), buckets)
