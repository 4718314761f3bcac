-- finish: let a lease go without storing an entry.
--
-- KEYS  1 entry (V)   2 build key (B)
-- ARGV  1 owner   2 nonce
--       3 state       'F' failed | 'P' pass | 'C' nothing but the interval
--       4 ms          F: until the next try; P: the mark lives
--       5 code        F: why, letters only
--       6 drop        '1' = gone at its source: delete what is stored
--       7 interval    ms that must lie between two grants of one key
--       8 channel     9 message: the wake-up, or the invalidation with a drop
-- reply {1 = held, and gone now | 0 = not this lease, now µs}
local now, stamp = clock()
local waited, nonce, count, owner = lease(redis.pcall('GET', KEYS[2]))
if owner ~= ARGV[1] or nonce ~= ARGV[2] then return {0, stamp} end

local cooling = cool(nonce, now, ARGV[7])
local ms = math.max(tonumber(ARGV[4]), cooling) -- neither mark may end the interval early
if ARGV[6] == '1' then redis.call('DEL', KEYS[1]) end
if ARGV[3] == 'F' then
  -- The mark outlives its back-off by as much again, so that a next failure counts on.
  local mark = 'F ' .. nonce .. ' ' .. (count + 1) .. ' ' .. string.format('%.0f', now + ms * 1000) .. ' ' .. ARGV[5]
  leave(KEYS[2], mark, 2 * ms)
elseif ARGV[3] == 'P' then
  leave(KEYS[2], 'P ' .. nonce .. ' ' .. count, ms)
else
  rest(KEYS[2], nonce, count, cooling)
end
if waited == '1' or ARGV[6] == '1' then redis.pcall('PUBLISH', ARGV[8], ARGV[9]) end
return {1, stamp}
