-- Gives one node's vote for a lock to its owner, or tells who has it and for how long.
--
-- Each request of an owner carries a higher number than those before, and the number is kept with the vote: an undo,
-- which names the number of what it undoes, cannot take away what a later request was given, however late it arrives.
--
-- KEYS[1]  the lock: "owner:number", always with a TTL
-- ARGV[1]  owner, unique to the acquisition
-- ARGV[2]  TTL of the lock, ms
-- ARGV[3]  number of the request
-- ARGV[4]  how long the node must have been up to vote for a new owner, ms; 0 for no such rule
--
-- Returns {1, 0, ''} when given, now or before to the same owner, else {0, what is left of the TTL in ms, owner}.

local held = redis.call('GET', KEYS[1])
local ttl, number = tonumber(ARGV[2]), tonumber(ARGV[3])
if held then
  local left = redis.call('PTTL', KEYS[1])
  local owner, before = string.match(held, '^(.*):(%d+)$')
  if owner ~= ARGV[1] then
    return {0, left, owner or ''}
  end
  ttl, number = math.max(ttl, left), math.max(number, tonumber(before))
elseif ARGV[4] ~= '0' then
  -- What this node had promised before it was restarted may be forgotten, but not yet over.
  local up = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
  if tonumber(up) * 1000 < tonumber(ARGV[4]) then
    return redis.error_reply('NOVOTE the node has been up for ' .. up .. ' s: must be ' .. ARGV[4] .. ' ms')
  end
end
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. string.format('%.0f', number), 'PX', string.format('%.0f', ttl))
return {1, 0, ''}
