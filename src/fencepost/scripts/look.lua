#!lua flags=no-writes
-- look: answer several read commands as one view of the partition: nothing changes between them.
-- KEYS: meta events stats leases later dead recent
-- ARGV: items: number of words, then the words of a read command on a key of this partition
-- RETURNS: a flat list: now_ms, then one reply for each command, as the server gives it
-- TWICE: reads only; a command that writes is refused by the server.
local clock = redis.call('TIME')
local out, n, at = {string.format('%.0f', math.floor((clock[1] * 1000000 + clock[2]) / 1000))}, 1, 1
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  n = n + 1
  out[n] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
end
return out
