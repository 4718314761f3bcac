-- Puts back the item of an order, once, however often it is sent.
--
-- KEYS[1]  items left
-- KEYS[2]  set of the orders that have taken one
-- ARGV[1]  the order
--
-- Returns 1, or 0 when the order has none.

if redis.call('SREM', KEYS[2], ARGV[1]) == 0 then
  return 0
end
redis.call('INCR', KEYS[1])
return 1
