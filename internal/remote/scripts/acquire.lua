-- acquire: take the rebuild lease of one key, unless its entry is newer than what
-- the caller saw, or somebody else builds it, failed to, or rests.
--
-- KEYS  1 entry (V)   2 build key (B)
-- ARGV  1 owner       random for each acquisition; only a resend of it reuses it
--       2 ttl         ms the lease lives unless renewed
--       3 seen        version of the entry the caller read ('' = none, or unreadable)
--       4 notAfter    server time in µs past which this call does nothing ('' = unknown)
--       5 wait        '1' = mark the lease so that its end is announced
--       6 outer       what another locker has said: 'mine' = its lock is held for this call,
--                     'theirs' = by somebody else, so take nothing; '' = it was not asked
-- reply {state, now µs, ...}
--       VOID    | NEWER entry | GRANTED nonce failures | HELD ms | COOLING ms
--       FAILED ms failures code | PASS ms
local now, stamp = clock()
if ARGV[4] ~= '' and now > tonumber(ARGV[4]) then return {'VOID', stamp} end

-- An entry of another type is an error here: its reader could not read it either,
-- and the commit's SET replaces it.
local v = redis.pcall('GET', KEYS[1])
if type(v) == 'string' and version(v) ~= ARGV[3] then return {'NEWER', stamp, v} end

local b = redis.pcall('GET', KEYS[2])
local ms = 0
if b then
  ms = redis.call('PTTL', KEYS[2])
  if failed(b) or ms < 0 then -- of another type, or immortal: not written by a script of ours
    redis.call('DEL', KEYS[2])
    b = false
  end
end

local last, count = 0, 0
if b then
  local w, grant, c, owner = lease(b)
  local kind, g, n, tail = string.match(b, '^([FCP]) (%d+) (%d+)(.*)$')
  local given = tonumber(kind ~= 'F' and (grant or g) or nil)
  if given and given - now > 1000000 and ms > tonumber(ARGV[2]) then
    -- From the future: the clock was set back, or is that of a new master and behind, and
    -- what was to live for a moment lives on for that much. A holder renews before it ends,
    -- unless its TTL is more than thrice that of this caller: then it loses the lease.
    ms = tonumber(ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ms)
  end
  if owner == ARGV[1] then -- the reply to this very acquisition was lost
    redis.call('PEXPIRE', KEYS[2], ARGV[2])
    return {'GRANTED', stamp, grant, tonumber(c)}
  end
  if owner then -- also without another locker, or one that lost its lock there and does not know it
    if ARGV[5] == '1' and w == '0' then
      redis.pcall('SETRANGE', KEYS[2], 2, '1') -- the lease ends where its holder believes; without memory nobody is woken
    end
    return {'HELD', stamp, ms}
  end
  if kind then
    last, count = tonumber(g), tonumber(n)
  end
  if kind == 'C' then return {'COOLING', stamp, ms} end
  if kind == 'P' then return {'PASS', stamp, ms} end
  if kind == 'F' then
    local retryAt, code = string.match(tail, '^ (%d+) (%a+)$')
    local left = retryAt and math.ceil((tonumber(retryAt) - now) / 1000) or 0
    -- The mark lives for twice its back-off, so the time from the next try to its end is the
    -- back-off. If more than that is left, and not by rounding, the clock was set back.
    if left > ms - left + 1000 then
      left = math.max(ms - left, 1)
      ms = 2 * left
      redis.call('SET', KEYS[2], 'F ' .. g .. ' ' .. n .. ' ' .. string.format('%.0f', now + left * 1000) .. ' ' .. code, 'PX', ms)
    end
    left = math.min(left, ms)
    if left > 0 then return {'FAILED', stamp, left, count, code} end
  end
end

if ARGV[6] == 'theirs' then return {'HELD', stamp, 0} end -- no lease yet, or none any more

-- The nonce rises even if the server's clock stands or is set back.
local nonce = string.format('%.0f', math.max(now, last + 1))
-- Who was refused by the other locker before now has found no lease to mark.
local waited = ARGV[6] == 'mine' and '1' or '0'
local held = 'L ' .. waited .. ' ' .. nonce .. ' ' .. count .. ' ' .. ARGV[1]
if b then
  redis.call('SET', KEYS[2], held, 'PX', ARGV[2])
else
  redis.call('SET', KEYS[2], held, 'PX', ARGV[2], 'NX')
end
return {'GRANTED', stamp, nonce, count}
