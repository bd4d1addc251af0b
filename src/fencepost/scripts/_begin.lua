-- _begin: server time, the partition's clock, token and sequence counters, events, counters, wake-ups.
-- Every script that includes this is called with KEYS[1..7] = meta events stats leases later dead recent.
-- Nothing is written before commit(), except by the script itself.
local call, fmt, sub = redis.call, string.format, string.sub
local META, EVENTS, STATS, LEASES, LATER, DEAD, RECENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local P = sub(META, 1, -5)
local JOB = P .. 'job:'
local clock = call('TIME')
local us = clock[1] * 1000000 + clock[2]
local m = call('HMGET', META, 'last_us', 'token', 'seq', 'grace_until', 'lease_ms', 'incarnation', 'paused')
-- A wrong type fails here, above every write.
call('XLEN', EVENTS) call('HLEN', STATS) call('ZCARD', LEASES) call('LLEN', RECENT)
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

local lines, told, tally, rings, recent, by = {}, 0, {}, {}, {}, ''
-- For every number that is joined to text or returned: plain conversion keeps 14 digits only.
local function int(n) return fmt('%.0f', n) end
local function mint()
  token = token + 1
  if token < us then token = us end
  return fmt('%.0f', token)
end
local function count(name, kind, n)
  local t = tally[name]
  if not t then t = {} tally[name] = t end
  t[kind] = (t[kind] or 0) + (n or 1)
end
local function ring(queue) rings[queue] = (rings[queue] or 0) + 1 end
-- An event: name, job id, kind, then what is known of: token nonce attempt reason resource. Tab-separated.
local function emit(name, id, kind, tok, nonce, attempt, reason, resource)
  told = told + 1
  if reason and reason ~= '' then reason = string.gsub(reason, '%c', ' ') end -- people's text must not break the line
  lines[told] = name .. '\t' .. id .. '\t' .. (kind or '') .. '\t' .. (tok or '') .. '\t' .. (nonce or '') .. '\t'
    .. (attempt or '') .. '\t' .. (reason or '') .. '\t' .. (resource or '')
end
-- A paused queue hands out nothing and wakes nobody. The names stand between blanks.
local function is_paused(queue) return m[7] and string.find(m[7], ' ' .. queue .. ' ', 1, true) end
-- The options of a job: "name=value" lines, absent for a plain job.
local function options(text)
  local o = {}
  if text then for name, value in string.gmatch(text, '([%w_]+)=([^\n]*)') do o[name] = value end end
  return o
end
local function is(key, wanted) -- reads below a write must not be able to fail: look at the type first
  local found = call('TYPE', key).ok
  return found == wanted or found == 'none'
end
-- A job comes into its queue. A queue of a wrong type is left alone: the job is queued all the same, and heal finds it.
local queues = {}
local function enter(queue, score, id)
  local key = P .. 'ready:' .. queue
  if queues[key] == nil then queues[key] = is(key, 'zset') end
  if not queues[key] then return count('orphan', 'queue') end
  call('ZADD', key, score, id)
  ring(queue)
end
-- Keep about 100,000 events; for a ledger that has not copied them yet, up to event_cap. What goes beyond is counted.
local function trim_events()
  local floor, a = seq - 100000, call('HMGET', META, 'archived', 'event_cap', 'dropped_to')
  local archived = tonumber(a[1])
  if archived and archived < floor then
    local cap = math.min(floor, seq - (tonumber(a[2]) or 1000000))
    floor = math.max(archived, cap)
    local new = cap - math.max(archived, tonumber(a[3]) or 0)
    if new > 0 then
      call('HSET', META, 'dropped_to', int(cap))
      count('events_dropped', 'ledger', new)
    end
  end
  call('XTRIM', EVENTS, 'MINID', '~', int(floor))
end
-- sweeping: true where this call looked for lapsed leases, so that it counts as a sign of life of the partition.
local function commit(sweeping)
  local set = {}
  if told > 0 then
    seq = seq + told
    set = {'seq', int(seq)}
    local id = set[2] .. '-0'
    call('XADD', EVENTS, id, 't', now, 'w', by, 'e', table.concat(lines, '\n'))
    if seq > 100000 and math.floor(seq / 1000) > math.floor((seq - told) / 1000) then trim_events() end
    lines, told = {}, 0
  end
  for name, kinds in pairs(tally) do
    for kind, n in pairs(kinds) do call('HINCRBY', STATS, name .. ':' .. kind, n) end
  end
  tally = {}
  if #recent > 0 then
    if call('LPUSH', RECENT, unpack(recent)) > 11000 then call('LTRIM', RECENT, 0, 9999) end
    recent = {}
  end
  local n = #set
  if token > (tonumber(m[2]) or 0) then set[n + 1] = 'token' set[n + 2] = int(token) n = n + 2 end
  if sweeping then
    set[n + 1] = 'last_us' set[n + 2] = int(us) n = n + 2
    if grace_until > (tonumber(m[4]) or 0) then set[n + 1] = 'grace_until' set[n + 2] = grace_until n = n + 2 end
  end
  if not m[6] then set[n + 1] = 'incarnation' set[n + 2] = int(us) n = n + 2 end
  if n > 0 then call('HSET', META, unpack(set)) end
end
-- Last of all: one wake-up per job that is ready, at most 8 in store. soon: queues with a job that is due before an idle
-- worker would look by itself.
local function wake(soon)
  for queue, n in pairs(rings) do
    local bell = P .. 'bell:' .. queue
    if not is_paused(queue) and (soon and soon[queue] or call('EXISTS', P .. 'ready:' .. queue) == 1) and is(bell, 'list') then
      local room = 8 - call('LLEN', bell)
      if n > room then n = room end
      for _ = 1, n do call('LPUSH', bell, '1') end
      if n > 0 then call('PEXPIRE', bell, 60000) end
    end
  end
end
