-- Takes an item for an order, unless it has one: a command that is sent again takes nothing more.
--
-- KEYS[1]  items left
-- KEYS[2]  set of the orders that have taken one
-- ARGV[1]  the order
--
-- Returns 1, or 0 when nothing is left.

if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then
  return 1
end
if tonumber(redis.call('GET', KEYS[1]) or '0') <= 0 then
  return 0
end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], 3600)
return 1
