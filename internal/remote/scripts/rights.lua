-- rights: try the commands that the scripts and the store send, and change nothing.
--
-- KEYS  1 key         never written
-- ARGV  1 channel     2 message, a heartbeat     3 'info' if the store will ask for it
-- reply {command, error, ...} of those that failed
local errors = {}
local function try(command, ...)
  local r = redis.pcall(command, ...)
  if failed(r) then
    errors[#errors + 1] = command
    errors[#errors + 1] = r.err
  end
end
try('time')
try('get', KEYS[1])
try('mget', KEYS[1])
try('pttl', KEYS[1])
try('pexpire', KEYS[1], 1)
try('set', KEYS[1], '', 'XX')
try('setrange', KEYS[1], 0, '')
try('del', KEYS[1])
try('publish', ARGV[1], ARGV[2])
if ARGV[3] == 'info' then
  try('info', 'replication')
end
return errors
