#!lua flags=allow-oom
-- finish: write the outcomes of many runs, each checked against token, nonce and lease, then claim the next jobs.
-- KEYS: as claim
-- ARGV: as claim, then items: id token nonce word values...
--       DONE result | RETRY delay_ms error_class error | BURY reason error_class error
--       RELEASE delay_ms reason | CANCEL reason
-- RETURNS: OK now_ms next_due_in_ms jobs replies; jobs as claim; replies flat, 2 values an item:
--          OK '' | REPLAY '' | STALE newest_token | EXPIRED '' | GONE ''
--          EXPIRED: the lease ran out and nobody else has claimed the job yet. GONE: there is no such job.
-- TWICE: a settled item answers REPLAY and changes nothing; the claims are replayed.
--- @include _begin
--- @include _end
--- @include _sweep
--- @include _claim
--- @include _serve
local VALUES = {DONE = 1, RETRY = 3, BURY = 3, RELEASE = 2, CANCEL = 1}
local items = {}
while at <= #ARGV do
  local word = ARGV[at + 3]
  local width = VALUES[word]
  if not width or at + 3 + width > #ARGV then return redis.error_reply('ERR finish: bad item ' .. tostring(word)) end
  items[#items + 1] = {ARGV[at], ARGV[at + 1], ARGV[at + 2], word, ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]}
  at = at + 4 + width
end
local replies, settled, jobs = {}, {}, {}
for i, it in ipairs(items) do
  local j = call('HMGET', P .. 'job:' .. it[1], 'state', 'token', 'nonce', 'kind', 'queue', 'resource', 'dedup',
    'settled', 'attempts', 'worker', 'cancel', 'retention_ms', 'failed_retention_ms', 'ordered', 'priority', 'score')
  local until_ms = call('ZSCORE', LEASES, it[1])
  local word, newest = 'OK', ''
  if not j[1] then word = 'GONE'
  elseif j[8] == it[3] .. ' ' .. it[4] then word = 'REPLAY'
  elseif j[3] ~= it[3] or j[2] ~= it[2] or j[1] ~= 'processing' then
    word, newest = 'STALE', j[2] or '0'
    if j[3] == '' and (j[1] == 'queued' or j[1] == 'waiting' or j[1] == 'scheduled') then word, newest = 'EXPIRED', '' end
  elseif not in_grace and (not until_ms or tonumber(until_ms) <= now) then word = 'EXPIRED'
  elseif settled[it[1]] then word = 'REPLAY'
  end
  if word == 'OK' then settled[it[1]] = true end
  jobs[i], replies[2 * i - 1], replies[2 * i] = j, word, newest
end
call('ZCARD', DEAD) call('ZCARD', RECENT) call('ZCARD', LATER)

local function settle(it, j)
  local id, word, key = it[1], it[4], P .. 'job:' .. it[1]
  local spec = {kind = j[4], resource = j[6], dedup = j[7], nonce = it[3], token = it[2], attempts = j[9],
    worker = j[10], retention = j[12]}
  local fields = {'settled', it[3] .. ' ' .. word}
  local function error_is(class, text)
    fields[#fields + 1] = 'error_class'; fields[#fields + 1] = class
    fields[#fields + 1] = 'error'; fields[#fields + 1] = text
  end
  if word == 'DONE' then
    if it[5] ~= '' then fields[3] = 'result'; fields[4] = it[5] end
    return end_job(id, 'done', '', spec, fields)
  elseif word == 'BURY' then
    error_is(it[6], it[7])
    spec.retention = j[13]
    return end_job(id, 'failed', it[5], spec, fields)
  end
  if word == 'RETRY' then error_is(it[6], it[7]) end
  if word == 'CANCEL' or j[11] then
    return end_job(id, 'cancelled', word == 'CANCEL' and it[5] or j[11], spec, fields)
  end
  local delay, attempts = tonumber(it[5]) or 0, j[9]
  local kept = j[6] and j[14] and word == 'RETRY'
  local score = j[16]
  if not (word == 'RELEASE' and delay == 0) and not kept then
    score = int((now + delay) * 1000 - (tonumber(j[15]) or 0) * 60000000)
  end
  if word == 'RELEASE' then
    attempts = int((tonumber(j[9]) or 1) - 1)
    call('HINCRBY', key, 'releases', 1)
  end
  local state = delay > 0 and 'scheduled' or 'queued'
  local set = {'state', state, 'nonce', '', 'attempts', attempts, 'score', score, 'updated_at', int(now), unpack(fields)}
  if delay > 0 then set[#set + 1] = 'due_at'; set[#set + 1] = int(now + delay) end
  call('HSET', key, unpack(set))
  if delay > 0 then call('ZADD', LATER, int(now + delay), id)
  else call('ZADD', P .. 'ready:' .. j[5], score, id) ring(j[5]) end
  if kept then reserve_place(j[6], it[3], id, now + delay + RESERVED_MS)
  elseif j[6] then free_place(j[6], it[3]) end
  local name = word == 'RETRY' and 'retry_scheduled' or 'released'
  count((word == 'RETRY' and 'retried:' or 'released:') .. j[4])
  emit(name, id, j[4], it[2], it[3], j[9], j[10], it[6], j[6])
end
local gone, resent = {LEASES}, 0
for i, it in ipairs(items) do
  local j, word = jobs[i], replies[2 * i - 1]
  if word == 'OK' then
    gone[#gone + 1] = it[1]
    settle(it, j)
  elseif word == 'REPLAY' then
    resent = resent + 1
  else
    count('refused:' .. string.lower(it[4]))
    emit('refused_stale', it[1], j[4], it[2], it[3], '', worker, string.lower(it[4]) .. ' ' .. string.lower(word)
      .. (replies[2 * i] ~= '' and ' newest ' .. replies[2 * i] or ''), j[6])
  end
end
if #gone > 1 then call('ZREM', unpack(gone)) end
local out, due = serve()
return {'OK', int(now), due, out, replies}
