-- _serve: the claiming half of claim and finish: replay, sweep, claim, remember the answer.
-- ARGV[1..7] = worker lane nonce n lease_ms upkeep queues, then queue and most for each queue.
-- KEYS[8..9] = worker workers, then one ready key a queue.
local WORKER, WORKERS = KEYS[8], KEYS[9]
local worker, lane, nonce, n, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local upkeep, ready, at = ARGV[6] ~= '', {}, 8
by = worker
for i = 1, tonumber(ARGV[7]) do
  ready[i] = {ARGV[at], tonumber(ARGV[at + 1]), KEYS[9 + i]}
  call('ZCARD', KEYS[9 + i])
  at = at + 2
end
local last = call('HGET', WORKER, lane)
call('ZCARD', LATER)
if upkeep then call('ZCARD', WORKERS) end

local function replay() -- the same call again: hand out the same runs, as far as they still are ours
  local i = 0
  for id in string.gmatch(sub(last, #nonce + 2), '%S+') do
    i = i + 1
    local key, p = JOB .. id, #jobs
    local j = is(key, 'hash')
      and call('HMGET', key, 'state', 'kind', 'payload', 'attempts', 'opts', 'nonce', 'token', 'queue') or {}
    if j[6] == nonce .. '.' .. i and j[1] == 'processing' then
      jobs[p + 1], jobs[p + 2], jobs[p + 3], jobs[p + 4], jobs[p + 5] = id, j[2], j[3] or '', j[7], j[4]
      local o = call('HMGET', key, 'crashes', 'checkpoint', 'releases', 'generation')
      local ran = o[1] or o[2] or o[3] or o[4] or j[4] ~= '1'
      add_extras(i, ran and o or NONE, options(j[5]))
    else -- keeps the numbering of the nonces
      for k = 1, 5 do jobs[p + k] = '' end
    end
    queues[#queues + 1] = j[8] or ''
    queues[#queues + 1] = 1
  end
end
-- Returns the end of the answer: next_due_in_ms jobs queues extras.
local function serve()
  if n > 0 and last and sub(last, 1, #nonce + 1) == nonce .. ' ' then
    replay()
    return '', jobs, queues, extras
  end
  sweep(n > 0 and 100 or 200)
  local taken, weary = 0, false
  if n > 0 then taken, weary = claim(n, nonce, worker, lease_ms, ready, n + 200) end
  if taken > 0 then
    local ids = {nonce}
    for i = 1, taken do ids[i + 1] = jobs[i * 5 - 4] end
    call('HSET', WORKER, lane, table.concat(ids, ' '))
    if not last then call('PEXPIRE', WORKER, lease_ms * 10 + 60000) end
  end
  if upkeep then
    call('HSET', WORKER, 'about', ARGV[6], 'seen_at', now)
    call('PEXPIRE', WORKER, lease_ms * 10 + 60000)
    call('ZADD', WORKERS, now, worker)
    call('ZREMRANGEBYSCORE', WORKERS, '-inf', now - 3600000)
    call('ZREMRANGEBYRANK', WORKERS, 0, -1001)
    trim_ended()
    if lease_ms ~= lease_seen or not m[5] then call('HSET', META, 'lease_ms', lease_ms) end
  end
  local due = ''
  if taken < n and weary then
    due = '0' -- there may be more behind those that could not run: ask again at once
  elseif taken < n then
    local head = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')
    if head[2] then due = int(math.max(0, tonumber(head[2]) - now)) end
  end
  commit(true)
  wake()
  return due, jobs, queues, extras
end
