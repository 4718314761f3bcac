-- renew: keep a lease alive.
--
-- KEYS  1 build key (B)
-- ARGV  1 owner   2 nonce   3 ttl ms
-- reply 1 = held, and now for ttl | 0 = not this lease
local _, nonce, _, owner = lease(redis.pcall('GET', KEYS[1]))
if owner ~= ARGV[1] or nonce ~= ARGV[2] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
