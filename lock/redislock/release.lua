-- Frees the lock and wakes those who wait for it, if this claim holds it.
--
-- KEYS[1]  the lock: "owner:token"
-- ARGV[1]  owner
-- ARGV[2]  token; 0 when not known
-- ARGV[3]  channel of the wake-up; empty for none
-- ARGV[4]  name of the lock, the message of the wake-up
--
-- Returns 1, or 0 when the lock is not held by this claim.

local owner, token = string.match(redis.call('GET', KEYS[1]) or '', '^(.*):(%d+)$')
if owner ~= ARGV[1] or (ARGV[2] ~= '0' and ARGV[2] ~= token) then
  return 0
end
redis.call('DEL', KEYS[1])
if ARGV[3] ~= '' then
  redis.pcall('PUBLISH', ARGV[3], ARGV[4]) -- the lock is free, whatever becomes of the message
end
return 1
