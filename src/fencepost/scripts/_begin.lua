-- _begin: server time, the partition's clock, token and sequence counters, events, counters, wake-ups.
-- Every script that includes this is called with KEYS[1..7] = meta events stats leases later dead recent.
-- Nothing is written before commit(), except by the script itself.
local call, fmt, sub = redis.call, string.format, string.sub
local META, EVENTS, STATS, LEASES, LATER, DEAD, RECENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local P = sub(META, 1, -5)
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local m = call('HMGET', META, 'last_us', 'token', 'seq', 'grace_until', 'lease_ms', 'incarnation')
-- A wrong type fails here, above every write.
call('XLEN', EVENTS) call('HLEN', STATS) call('ZCARD', LEASES)
local last_us, token, seq = tonumber(m[1]) or 0, tonumber(m[2]) or 0, tonumber(m[3])
local grace_until, lease_seen = tonumber(m[4]) or 0, tonumber(m[5]) or 30000
if not seq then -- meta was lost or is new: go on behind the last event there is
  local last = call('XREVRANGE', EVENTS, '+', '-', 'COUNT', 1)[1]
  seq = last and tonumber(string.match(last[1], '^%d+')) or 0
end
if us < last_us then us = last_us end -- the server's clock went back: stand still, never go back
local now = math.floor(us / 1000)
-- Nobody swept for long: an outage or a clock step. Live workers renew first, for one lease.
local silence = now - math.floor(last_us / 1000)
if last_us > 0 and silence > 3000 and silence > lease_seen / 2 then grace_until = now + lease_seen end
local in_grace = now < grace_until

local lines, tally, rings = {}, {}, {}
local function int(n) return fmt('%.0f', n) end
local function mint()
  token = token + 1
  if token < us then token = us end
  return int(token)
end
local function count(name) tally[name] = (tally[name] or 0) + 1 end
local function ring(queue) rings[queue] = (rings[queue] or 0) + 1 end
local function emit(name, id, kind, tok, nonce, attempt, worker, reason, resource)
  lines[#lines + 1] = name .. '\t' .. id .. '\t' .. (kind or '') .. '\t' .. (tok or '') .. '\t' .. (nonce or '') .. '\t'
    .. (attempt or '') .. '\t' .. (worker or '') .. '\t' .. (reason or '') .. '\t' .. (resource or '')
end
local function is(key, wanted) -- reads below a write must not be able to fail: look at the type first
  local found = call('TYPE', key).ok
  return found == wanted or found == 'none'
end
-- sweeping: true where this call looked for lapsed leases, so that it counts as a sign of life of the partition.
local function commit(sweeping)
  local set = {}
  if #lines > 0 then
    seq = seq + #lines
    set = {'seq', int(seq)}
    local id = int(seq) .. '-0'
    if seq > 100000 then
      call('XADD', EVENTS, 'MINID', '~', int(seq - 100000), id, 't', int(now), 'e', table.concat(lines, '\n'))
    else
      call('XADD', EVENTS, id, 't', int(now), 'e', table.concat(lines, '\n'))
    end
    lines = {}
  end
  for name, n in pairs(tally) do call('HINCRBY', STATS, name, n) end
  tally = {}
  if token > (tonumber(m[2]) or 0) then set[#set + 1] = 'token'; set[#set + 1] = int(token) end
  if sweeping then
    set[#set + 1] = 'last_us'; set[#set + 1] = int(us)
    if grace_until > (tonumber(m[4]) or 0) then set[#set + 1] = 'grace_until'; set[#set + 1] = int(grace_until) end
  end
  if not m[6] then set[#set + 1] = 'incarnation'; set[#set + 1] = int(us) end
  if #set > 0 then call('HSET', META, unpack(set)) end
end
local function wake() -- last of all: one wake-up per job that is ready, at most 8 in store
  for queue, n in pairs(rings) do
    local bell = P .. 'bell:' .. queue
    if call('EXISTS', P .. 'ready:' .. queue) == 1 and is(bell, 'list') then
      local room = 8 - call('LLEN', bell)
      if n > room then n = room end
      for _ = 1, n do call('LPUSH', bell, '1') end
      if n > 0 then call('PEXPIRE', bell, 60000) end
    end
  end
end
