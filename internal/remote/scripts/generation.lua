-- generation: read the generation of a cache, or begin another.
--
-- KEYS  1 generation   a number that only rises, also over its own loss: server µs
-- ARGV  1 op           'read' | 'clear'
--       2 channel      3 message, to which a new number is added
--       4 known        the highest number that the caller knows, '0' for none: after a failover
--                      it may be higher than what is stored, and than the server's time
--       5 step         by which a number exceeds the one before at least; random, so that no
--                      two masters give the same one
-- reply {generation, now µs}
local now, stamp = clock()
local last = number(redis.pcall('GET', KEYS[1]))
if ARGV[1] == 'read' and last then return {digits(last), stamp} end

local new = digits(risen(now, last, ARGV[4], ARGV[5]))
redis.call('SET', KEYS[1], new)
local told = redis.pcall('PUBLISH', ARGV[2], ARGV[3] .. new)
if failed(told) then return told end
return {new, stamp}
