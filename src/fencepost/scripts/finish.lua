#!lua flags=allow-oom
-- finish: write the outcomes of many runs, each checked against token, nonce and lease, then claim the next jobs.
-- KEYS: as claim
-- ARGV: as claim, then items: id token nonce word values...
--       DONE result | RETRY delay_ms error_class error | BURY reason error_class error
--       RELEASE delay_ms reason (unknown_kind for more than a day: failed) | CANCEL reason
--       NOTE event effect_key: no outcome, told as it is; of a run that is not ours any more as late_effect
-- RETURNS: OK now_ms next_due_in_ms jobs queues extras replies; as claim, and replies flat, 2 values an item:
--          OK '' | REPLAY '' | STALE newest_token | EXPIRED '' | GONE ''; see _check
-- TWICE: a settled item answers REPLAY and changes nothing; the claims are replayed. A late note is told again.
--- @include _begin
--- @include _check
--- @include _end
--- @include _sweep
--- @include _claim
--- @include _serve
local VALUES = {DONE = 1, RETRY = 3, BURY = 3, RELEASE = 2, CANCEL = 1, NOTE = 2}
local ENDS = {DONE = 'done', BURY = 'failed', CANCEL = 'cancelled'}
local items, ids, last_arg = {}, {}, #ARGV
while at <= last_arg do
  local word = ARGV[at + 3]
  local width = VALUES[word]
  if not width or at + 3 + width > last_arg then return redis.error_reply('ERR finish: bad item ' .. tostring(word)) end
  items[#items + 1] = at
  if word ~= 'NOTE' then ids[#ids + 1] = ARGV[at] end -- a run may have thousands of notes, unpack has a limit
  at = at + 4 + width
end
call('ZCARD', DEAD)
local replies, read, seen = {}, {}, {}
local deadlines, outcomes = #ids > 0 and call('ZMSCORE', LEASES, unpack(ids)) or {}, 0
for i, a in ipairs(items) do
  local id, tok, run, outcome = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local j = call('HMGET', JOB .. id, 'state', 'token', 'nonce', 'kind', 'opts', 'cancel')
  local deadline
  if outcome == 'NOTE' then deadline = call('ZSCORE', LEASES, id)
  else
    outcomes = outcomes + 1
    deadline = deadlines[outcomes]
  end
  local word, newest = check(JOB .. id, j, tok, run, deadline)
  if outcome == 'NOTE' then -- SQL has accepted it, whatever is true here; told once, with the outcome
    j.late, newest = word ~= 'OK', ''
    if j.late and j[1] then
      local settled = call('HGET', JOB .. id, 'settled') or ''
      local ended = j[3] == run and j[1] ~= 'processing' -- else its lease ran out, and nobody has noted that yet
      if ended or sub(settled, 1, #run + 1) == run .. ' ' then word = 'REPLAY' end
    end
    if word ~= 'REPLAY' then word = 'OK' end
  elseif word == 'OK' then
    if not seen[id] then seen[id] = outcome
    elseif seen[id] == outcome then word = 'REPLAY'
    else word, newest = 'STALE', tok end -- an earlier item settles this run, and otherwise
  elseif word ~= 'GONE' then -- was it this very outcome that settled the run?
    local ours = j[2] == tok or had(JOB .. id, tok, run)
    if ours and j[3] == run and j[1] == ENDS[outcome] or call('HGET', JOB .. id, 'settled') == run .. ' ' .. outcome then
      word, newest = 'REPLAY', ''
    end
  end
  read[i], replies[2 * i - 1], replies[2 * i] = j, word, newest
end

-- Back to its queue: after a failed attempt, or released with no attempt charged.
local function come_back(a, id, key, run, word, j, opt)
  local o = call('HMGET', key, 'attempts', 'score', 'queue')
  local delay, attempts, score = tonumber(ARGV[a + 4]) or 0, tonumber(o[1]) or 1, o[2]
  local kept = opt.resource and opt.ordered -- what depends on it must not overtake it
  if not kept and not (word == 'RELEASE' and delay == 0) then
    score = int((delay > 0 and (now + delay) * 1000 or us) - (tonumber(opt.priority) or 0) * 60000000)
  end
  local fields = {'settled', run .. ' ' .. word, 'nonce', '', 'score', score, 'updated_at', now,
    'state', delay > 0 and 'scheduled' or 'queued'}
  if word == 'RETRY' then
    call('HDEL', key, 'unknown_since') -- it ran: somebody knows it
    fields[11], fields[12], fields[13], fields[14] = 'error_class', ARGV[a + 5], 'error', ARGV[a + 6]
  else
    call('HINCRBY', key, 'releases', 1)
    fields[11], fields[12] = 'attempts', attempts - 1
  end
  if delay > 0 then fields[#fields + 1] = 'due_at' fields[#fields + 1] = now + delay end
  call('HSET', key, unpack(fields))
  if delay > 0 then
    call('ZADD', LATER, now + delay, id)
  else
    enter(o[3], score, id)
  end
  if kept then reserve_place(opt.resource, run, id, now + delay + RESERVED_MS)
  elseif opt.resource then free_place(opt.resource, run) end
  count(word == 'RETRY' and 'retried' or 'released', j[4])
  emit(word == 'RETRY' and 'retry_scheduled' or 'released', id, j[4], j[2], run, attempts, ARGV[a + 5], opt.resource)
end
local now_text = int(now)
local function settle(a, j)
  if ARGV[a + 3] == 'NOTE' then
    if j.late then count('late_effect', j[4] or '?') end
    return emit(j.late and 'late_effect' or ARGV[a + 4], ARGV[a], j[4], j.late and ARGV[a + 1] or j[2], ARGV[a + 2],
      '', ARGV[a + 5], options(j[5]).resource)
  end
  if ARGV[a + 3] == 'DONE' and not j[5] then -- a plain job is done: what end_job would do, at half its price
    local id, key, kind, value = ARGV[a], JOB .. ARGV[a], j[4], ARGV[a + 4]
    if value == '' then call('HSET', key, 'state', 'done', 'finished_at', now_text)
    else call('HSET', key, 'state', 'done', 'finished_at', now_text, 'result', value) end
    call('PEXPIRE', key, '86400000')
    recent[#recent + 1] = id
    count('done', kind)
    told = told + 1
    lines[told] = 'done\t' .. id .. '\t' .. kind .. '\t' .. j[2] .. '\t' .. ARGV[a + 2] .. '\t\t\t'
    return
  end
  local id, run, word = ARGV[a], ARGV[a + 2], ARGV[a + 3]
  local key, opt, value = JOB .. id, options(j[5]), ARGV[a + 4]
  if j[6] and (word == 'RETRY' or word == 'RELEASE') then word, value = 'CANCEL', j[6] end -- somebody asked meanwhile
  if word == 'RELEASE' and ARGV[a + 5] == 'unknown_kind' then -- since when? After a day it becomes a dead letter
    local since = tonumber(call('HGET', key, 'unknown_since')) or now
    if now - since > 86400000 then
      return end_job(id, key, 'failed', 'unknown_kind', j[4], j[2], run, '', opt,
        {'settled', run .. ' RELEASE', 'error', 'no worker that met it knew its kind for a day'})
    end
    call('HSET', key, 'unknown_since', since)
  end
  if not ENDS[word] then return come_back(a, id, key, run, word, j, opt) end
  local fields, reason = {}, ''
  if word == 'DONE' then
    if value ~= '' then fields = {'result', value} end
  else
    reason = value
    if word == 'BURY' then fields = {'error_class', ARGV[a + 5], 'error', ARGV[a + 6]} end
    if word ~= ARGV[a + 3] then fields = {'settled', run .. ' ' .. ARGV[a + 3]} end
  end
  end_job(id, key, ENDS[word], reason, j[4], j[2], run, '', opt, fields)
end
local gone = {LEASES}
for i, a in ipairs(items) do
  local word = replies[2 * i - 1]
  if word == 'OK' then
    if ARGV[a + 3] ~= 'NOTE' then gone[#gone + 1] = ARGV[a] end
    settle(a, read[i])
  elseif word ~= 'REPLAY' then
    refuse(string.lower(ARGV[a + 3]), word, replies[2 * i], ARGV[a], read[i][4], ARGV[a + 1], ARGV[a + 2],
      options(read[i][5]).resource)
  end
end
if #gone > 1 then call('ZREM', unpack(gone)) end
local due = serve()
if #gone > 1 and told > 0 then -- an outcome was accepted, and the claims were only replayed
  commit(false)
  wake()
end
return {'OK', int(now), due, jobs, queues, extras, replies}
