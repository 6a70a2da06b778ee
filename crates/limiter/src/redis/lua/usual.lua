-- Decides the usual acquire or correction. Every bucket of a usual call:
--   exists,
--   has exactly the caller's limits and rules, in the caller's order,
--   holds no leases,
--   does not remember the id,
--   has a refill time at most a minute ahead,
--   has no debt afterwards,
--   has no boundary of a calendar since its last refill.
-- And no earlier attempt is in doubt.
-- The whole script below decides every other call, and would decide a usual call the same.
--
-- KEYS and ARGV are those of `acquire.lua`. CORRECTS is defined in front of this file.
--
-- This part makes no function, and no table for a limit: either costs more than this decision.

do
  local call, pack, unpack_of, sub, fmod = redis.call, struct.pack, struct.unpack, string.sub, math.fmod
  local id, seen, is_short, now = ARGV[1], 0, false, nil
  local before, after = { false, false }, { false, false }
  for n = 1, #KEYS do
    local value, packed = call('GET', KEYS[n]), ARGV[2 * n + 1]
    local time, in_doubt, count = unpack_of('<ddd', packed)
    local head, rules = 56 + 24 * count, sub(packed, 25 + 8 * count)
    -- A value begins with its ids and ends with its rules.
    if not value or in_doubt > 0 or #value ~= head + #rules
      or not string.find(value, rules, head + 1, true) or string.find(value, id, 1, true) then
      break
    end
    now = now or time
    if now < 0 then
      local server = call('TIME')
      now = server[1] * 1000 + math.floor(server[2] / 1000)
    end
    local last, state, has_any = unpack_of('<d', value, 49), '', false
    local is_usual, counted = last <= now + 60000, ARGV[2 * #KEYS + 1 + n]
    if counted then
      local _, start, till = unpack_of('<ddd', counted)
      is_usual = is_usual and last >= start and now >= start and now < till
    end
    for i = 1, count do
      local amount = unpack_of('<d', packed, 17 + 8 * i)
      local tokens, low, high = unpack_of('<ddd', value, 33 + 24 * i)
      local burst, ra, rp = unpack_of('<ddd', rules, 24 * i - 23)
      if now > last then
        local x, y = fmod(now, rp), fmod(last, rp)
        local xa, ya = x * ra, y * ra
        tokens = tokens + (now - x - (last - y)) / rp * ra
          + (xa - fmod(xa, rp) - (ya - fmod(ya, rp))) / rp
      end
      tokens = (tokens < burst and tokens or burst) - amount
      tokens, low = tokens < burst and tokens or burst, low + amount
      -- A debt lengthens the expiry; a counter outside these bounds needs a carry.
      is_usual = is_usual and low >= 0 and low < 1e15
        and (tokens >= 0 or amount > 0 and not CORRECTS)
      is_short, has_any = is_short or tokens < 0, has_any or amount ~= 0
      state = state .. pack('<ddd', tokens, low, high)
    end
    if not is_usual or not has_any then
      break
    end
    seen, before[n] = n, value
    after[n] = id .. sub(value, 1, 36) .. pack('<d', now > last and now or last) .. state .. rules
  end
  if seen == #KEYS and is_short then
    return { 2, now, 0, 0, unpack(before, 1, seen) }
  end
  if seen == #KEYS then
    for n = 1, seen do
      local seconds = ARGV[2 * n]
      if seconds == '' then
        call('SET', KEYS[n], after[n])
      else
        call('SET', KEYS[n], after[n], 'EX', seconds)
      end
    end
    return seen > 1 and after or after[1]
  end
end
