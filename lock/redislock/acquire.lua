-- Gives the lock to its owner, or tells how long it is held.
--
-- KEYS[1]  the lock: "owner:token", always with a TTL
-- KEYS[2]  the fence: the token of the last grant; only of a lock with tokens
-- ARGV[1]  owner, unique to the acquisition
-- ARGV[2]  TTL of the lock, ms
-- ARGV[3]  TTL of the fence, ms; 0 for a lock without tokens
--
-- Returns {1, token} when granted, now or before to the same owner, else {0, what is left of the TTL in ms}.

local held = redis.call('GET', KEYS[1])
if held then
  local left = redis.call('PTTL', KEYS[1])
  local owner, token = string.match(held, '^(.*):(%d+)$')
  if owner ~= ARGV[1] then
    return {0, left}
  end
  -- It always writes, also when the TTL stays: WAIT is about what its connection has written.
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  return {1, token}
end

-- The clock keeps the order when the fence is gone, the fence when the clock steps back.
local token = '0'
if ARGV[3] ~= '0' then
  local now = redis.call('TIME')
  local last = tonumber(redis.call('GET', KEYS[2]) or '') or 0
  token = string.format('%.0f', math.max(now[1] * 1000000 + now[2], last + 1))
  redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. token, 'NX', 'PX', ARGV[2])
return {1, token}
