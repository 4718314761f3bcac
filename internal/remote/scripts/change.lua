-- change: delete, expire or set an entry, and tell everybody; who builds it loses the lease.
--
-- KEYS  1 entry (V)   2 build key (B)
-- ARGV  1 op          'delete' | 'expire' (mark stale) | 'set'
--       2 notAfter    server time in µs past which this call does nothing ('' = unknown)
--       3 interval    ms that must lie between two grants of one key
--       4 channel     5 message, the invalidation
--       6 entry       7 px    as for commit; op 'set' only
-- reply {DONE | VOID | NOT_STORED (deleted instead), now µs}
local now, stamp = clock()
if ARGV[2] ~= '' and now > tonumber(ARGV[2]) then return {'VOID', stamp} end

local op, state = ARGV[1], 'DONE'
if op == 'set' then
  -- First of all writes: after any other the memory limit would not be asked.
  if failed(redis.pcall('SET', KEYS[1], stamped(ARGV[6], now), 'PX', ARGV[7])) then
    state = 'NOT_STORED'
    redis.call('DEL', KEYS[1])
  end
elseif op == 'expire' then
  local v = redis.pcall('GET', KEYS[1])
  if v and (failed(v) or #v < 48 or failed(redis.pcall('SETRANGE', KEYS[1], 16, string.rep('\0', 8)))) then
    redis.call('DEL', KEYS[1])
  end
else
  redis.call('DEL', KEYS[1])
end

local b = redis.pcall('GET', KEYS[2])
local _, nonce, count = lease(b)
if not nonce and op == 'set' and type(b) == 'string' then
  nonce = string.match(b, '^F (%d+) ') -- a value ends a back-off; a delete does not
end
if nonce then
  if op == 'set' then count = 0 end
  rest(KEYS[2], nonce, count, cool(nonce, now, ARGV[3]))
end

local told = redis.pcall('PUBLISH', ARGV[4], ARGV[5])
if failed(told) then return told end
return {state, stamp}
