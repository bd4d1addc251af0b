-- _end: free a resource place and hand it over; end a job for good. Below the first write, so nothing here can fail.
local RESERVED_MS = 30000
-- Give the free place to the first who waits: a job comes back to its queue with the place reserved for it,
-- a stand-alone lease begins at once. His own limit counts: with others inside he may have to go on waiting.
local function hand_over(resource)
  local line, slots = P .. 'line:' .. resource, P .. 'slots:' .. resource
  if not (is(line, 'zset') and is(slots, 'zset')) then return end
  local inside = call('ZCARD', slots)
  for _ = 1, 500 do
    local id = call('ZRANGE', line, 0, 0)[1]
    if not id then return end
    if sub(id, 1, 1) == '@' then
      local key = P .. 'lease:' .. sub(id, 2)
      local l = is(key, 'hash') and call('HMGET', key, 'ttl_ms', 'state', 'limit') or {}
      if l[1] and l[2] == 'waiting' then
        if inside >= (tonumber(l[3]) or 1) then return end
        call('ZREM', line, id)
        local tok, ttl = mint(), tonumber(l[1])
        call('HSET', key, 'state', 'held', 'token', tok)
        call('PERSIST', key)
        call('ZADD', slots, now + ttl, id)
        call('ZADD', LEASES, now + ttl, id)
        local grant = P .. 'grant:' .. sub(id, 2)
        call('DEL', grant) call('LPUSH', grant, tok) call('PEXPIRE', grant, ttl + 1000)
        emit('handed_over', id, '', tok, sub(id, 2), '', '', resource)
        return
      end
    else
      local key = JOB .. id
      local j = is(key, 'hash') and call('HMGET', key, 'state', 'queue', 'score', 'kind', 'opts') or {}
      if j[1] == 'waiting' and j[2] and j[3] then
        if inside > 0 and inside >= (tonumber(options(j[5]).limit) or 1) then return end
        call('ZREM', line, id)
        call('HSET', key, 'state', 'queued', 'updated_at', now)
        enter(j[2], j[3], id)
        -- Nobody may come for the place while its queue is paused: the next in line gets it.
        local passed = is_paused(j[2])
        emit('handed_over', id, j[4], '', '', '', passed and 'paused' or '', resource)
        if not passed then
          call('ZADD', slots, now + RESERVED_MS, '=' .. id)
          call('ZADD', LEASES, now + RESERVED_MS, '=' .. id)
          return
        end
      end
    end
    if call('ZREM', line, id) == 1 then count('orphan', 'line') end -- the waiter is gone: its place in the line too
  end
end
-- member: the run's nonce, or =id for a reserved place.
local function free_place(resource, member)
  local slots = P .. 'slots:' .. resource
  if not is(slots, 'zset') or call('ZREM', slots, member) == 0 then return end
  if call('EXISTS', P .. 'line:' .. resource) == 1 then hand_over(resource) end
end
local function reserve_place(resource, nonce, id, until_ms)
  local slots = P .. 'slots:' .. resource
  if not is(slots, 'zset') then return end
  call('ZREM', slots, nonce)
  call('ZADD', slots, until_ms, '=' .. id)
  call('ZADD', LEASES, until_ms, '=' .. id)
end
-- kind, tok, nonce, attempt: for the event. opt: the job's options. fields: more pairs for the hash. event: by default
-- the state; for another one the reason in it is the state.
local function end_job(id, key, state, reason, kind, tok, nonce, attempt, opt, fields, event)
  local n = #fields
  fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = 'state', state, 'finished_at', now
  if reason ~= '' then fields[n + 5], fields[n + 6] = 'reason', reason end
  call('HSET', key, unpack(fields))
  if state == 'failed' then
    call('PEXPIRE', key, opt.failed_retention_ms or 604800000)
    if is(DEAD, 'zset') then call('ZADD', DEAD, now, id) end
  else
    call('PEXPIRE', key, opt.retention_ms or 86400000)
    recent[#recent + 1] = id
  end
  if opt.dedup then
    local dedup = P .. 'dedup:' .. opt.dedup
    if is(dedup, 'string') and call('GET', dedup) == id then call('DEL', dedup) end
  end
  if opt.resource then
    if nonce and nonce ~= '' then free_place(opt.resource, nonce) end
    if call('ZREM', LEASES, '=' .. id) == 1 then free_place(opt.resource, '=' .. id) end
  end
  count(event or state, kind)
  emit(event or state, id, kind, tok, nonce, attempt, event and state or reason, opt.resource)
end
-- Keep the indexes of ended jobs bounded, by number and by what is still there, a few entries at a time.
local function trim_ended()
  for _ = 1, 50 do
    local id = call('LINDEX', RECENT, -1)
    if not id or call('EXISTS', JOB .. id) == 1 then break end
    call('RPOP', RECENT)
  end
  if is(DEAD, 'zset') then
    call('ZREMRANGEBYRANK', DEAD, 0, -100001)
    for _, id in ipairs(call('ZRANGEBYSCORE', DEAD, '-inf', now - 1000, 'LIMIT', 0, 20)) do
      if call('EXISTS', JOB .. id) == 0 then call('ZREM', DEAD, id) end
    end
  end
end
