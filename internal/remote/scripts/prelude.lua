-- prelude: what several scripts need; it stands before each of them.
--
-- The build key (B) is absent, or one of
--   L w grant count owner        lease: w = '1' if somebody waits; grant = its nonce, server µs
--   F grant count retryAt code   the load failed: nobody tries before retryAt (server µs)
--   C grant count                cooling: what is left of the interval between two grants
--   P grant count                pass: load it, but store nothing
-- and always expires. grant is the last nonce given; count the failures in a row.
-- Scripts are not transactions: each is ordered so that every prefix of it is safe.

local function clock() -- server time in µs, as a number and as digits
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  return now, string.format('%.0f', now)
end

local function version(entry) -- bytes 36..43, '' if it is too short to have one
  if #entry < 44 then return '' end
  return string.sub(entry, 37, 44)
end

local function stamped(entry, now) -- the entry with now as its build time (ms, bytes 16..23)
  local ms, bytes = math.floor(now / 1000), {}
  for i = 8, 1, -1 do
    bytes[i] = string.char(ms % 256)
    ms = math.floor(ms / 256)
  end
  return string.sub(entry, 1, 16) .. table.concat(bytes) .. string.sub(entry, 25)
end

local function lease(b) -- waited, nonce, count, owner; nil if b is no lease
  if type(b) ~= 'string' then return nil end
  return string.match(b, '^L ([01]) (%d+) (%d+) (%x+)$')
end

-- ms left until the next grant may be given; the whole interval if the clock was set back
local function cool(nonce, now, interval)
  return math.min(math.ceil((tonumber(nonce) - now) / 1000), 1) + tonumber(interval)
end

local function leave(key, mark, ms) -- a lease ends: the mark stands there for ms, or nothing
  redis.call('DEL', key) -- after any write, also this one, no SET is refused for want of memory
  if ms > 0 then redis.call('SET', key, mark, 'PX', ms) end
end

local function rest(key, nonce, count, ms) leave(key, 'C ' .. nonce .. ' ' .. count, ms) end

local function digits(n) return string.format('%.0f', n) end

local function number(reply) -- what a key of ours says, nil for absent or foreign
  return type(reply) == 'string' and string.match(reply, '^%d+$') and tonumber(reply) or nil
end

-- above last, and known, over clocks that are set back. By a step only if the last one is ahead of the clock, or lost:
-- numbers that are given in quick succession would run away from it.
local function risen(now, last, known, step)
  last, known = last or 0, tonumber(known)
  if known <= last and last - now < 65536 then step = 1 end
  return math.max(now, math.max(last, known) + tonumber(step))
end

local function failed(reply) return type(reply) == 'table' and reply.err ~= nil end

