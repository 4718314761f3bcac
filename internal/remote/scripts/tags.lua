-- tags: read the numbers of tags, or raise them. An entry holds the number that the
-- sequence had before it was loaded, and is valid while none of its tags has a higher one.
--
-- KEYS  1 sequence     a number that only rises, also over its own loss: server µs
--       2… tags        the sequence's number when the tag was last invalidated
-- ARGV  1 op           'read' | 'raise'
--       2 ttl          ms that a tag is kept from now on
--       3 channel      4 message, to which the new number is added; op 'raise' only
--       5 known        6 step, as for a generation
-- reply {sequence, number of each tag…}
local now = clock()
local seq = number(redis.pcall('GET', KEYS[1]))
local raise = ARGV[1] == 'raise'
if raise or not seq then
  seq = risen(now, seq, ARGV[5], ARGV[6])
  redis.call('SET', KEYS[1], digits(seq))
end

local reply = {digits(seq)}
for i = 2, #KEYS do
  local n = number(redis.pcall('GET', KEYS[i]))
  if raise or not n then -- lost, or never there: nothing from before now is trusted
    n = seq
    redis.call('SET', KEYS[i], digits(n), 'PX', ARGV[2])
  else
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
  reply[i] = digits(n)
end
if raise then
  local told = redis.pcall('PUBLISH', ARGV[3], ARGV[4] .. digits(seq))
  if failed(told) then return told end
end
return reply
