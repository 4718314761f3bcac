-- commit: store the entry if exactly this lease is still held, and let it go.
--
-- KEYS  1 entry (V)   2 build key (B)
-- ARGV  1 owner   2 nonce
--       3 entry       header and payload; the build time is written here
--       4 px          ms the entry lives
--       5 interval    ms that must lie between two grants of one key
--       6 pass        ms for which nobody stores, should this SET fail
--       7 channel     8 message, the wake-up
-- reply {STORED | REFUSED | NOT_STORED, now µs}
local now, stamp = clock()
local waited, nonce, count, owner = lease(redis.pcall('GET', KEYS[2]))
if owner ~= ARGV[1] or nonce ~= ARGV[2] then
  -- The first copy of a resent commit may have stored it and let the lease go.
  local v = redis.pcall('GET', KEYS[1])
  if type(v) == 'string' and version(v) == version(ARGV[3]) then return {'STORED', stamp} end
  return {'REFUSED', stamp}
end

-- The entry first: after any other write of this script the memory limit would not be asked.
local state, cooling = 'STORED', cool(nonce, now, ARGV[5])
if failed(redis.pcall('SET', KEYS[1], stamped(ARGV[3], now), 'PX', ARGV[4])) then
  state = 'NOT_STORED'
  leave(KEYS[2], 'P ' .. nonce .. ' ' .. count, math.max(tonumber(ARGV[6]), cooling))
else
  rest(KEYS[2], nonce, 0, cooling)
end
if waited == '1' then redis.pcall('PUBLISH', ARGV[7], ARGV[8]) end
return {state, stamp}
