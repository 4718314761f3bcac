-- Makes the lock last for at least a TTL from now, if this claim holds it.
--
-- KEYS[1]  the lock: "owner:token"
-- ARGV[1]  owner
-- ARGV[2]  token; 0 when not known
-- ARGV[3]  TTL, ms
--
-- Returns 1, or 0 when the lock is not held by this claim.

local owner, token = string.match(redis.call('GET', KEYS[1]) or '', '^(.*):(%d+)$')
if owner ~= ARGV[1] or (ARGV[2] ~= '0' and ARGV[2] ~= token) then
  return 0
end
-- It always writes, also when the TTL stays: WAIT is about what its connection has written.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3])))
return 1
