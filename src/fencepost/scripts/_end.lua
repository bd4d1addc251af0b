-- _end: free a resource place and hand it over; end a job for good. Below the first write, so nothing here can fail.
local RESERVED_MS = 30000
-- Give the free place to the first who waits: a job comes back to its queue with the place reserved for it,
-- a stand-alone lease begins at once.
local function hand_over(resource)
  local line, slots = P .. 'line:' .. resource, P .. 'slots:' .. resource
  if not (is(line, 'zset') and is(slots, 'zset')) then return end
  for _ = 1, 500 do
    local id = call('ZRANGE', line, 0, 0)[1]
    if not id then return end
    call('ZREM', line, id)
    if sub(id, 1, 1) == '@' then
      local key = P .. 'lease:' .. sub(id, 2)
      local l = is(key, 'hash') and call('HMGET', key, 'ttl_ms', 'owner') or {}
      if l[1] then
        local tok, ttl = mint(), tonumber(l[1])
        call('HSET', key, 'state', 'held', 'token', tok)
        call('PERSIST', key)
        call('ZADD', slots, int(now + ttl), id)
        call('ZADD', LEASES, int(now + ttl), id)
        local grant = P .. 'grant:' .. sub(id, 2)
        call('DEL', grant) call('LPUSH', grant, tok) call('PEXPIRE', grant, ttl + 1000)
        emit('handed_over', id, '', tok, sub(id, 2), '', l[2], '', resource)
        return
      end
    else
      local key = P .. 'job:' .. id
      local j = is(key, 'hash') and call('HMGET', key, 'state', 'queue', 'score', 'kind') or {}
      if j[1] == 'waiting' then
        call('HSET', key, 'state', 'queued', 'updated_at', int(now))
        call('ZADD', P .. 'ready:' .. j[2], j[3], id)
        call('ZADD', slots, int(now + RESERVED_MS), '=' .. id)
        call('ZADD', LEASES, int(now + RESERVED_MS), '=' .. id)
        emit('handed_over', id, j[4], '', '', '', '', '', resource)
        ring(j[2])
        return
      end
    end
    count('orphan:line') -- the waiter is gone: its place in the line went with it
  end
end
-- member: the run's nonce, or =id for a reserved place.
local function free_place(resource, member)
  local slots = P .. 'slots:' .. resource
  if is(slots, 'zset') and call('ZREM', slots, member) == 1 then hand_over(resource) end
end
local function reserve_place(resource, nonce, id, until_ms)
  local slots = P .. 'slots:' .. resource
  if not is(slots, 'zset') then return end
  call('ZREM', slots, nonce)
  call('ZADD', slots, int(until_ms), '=' .. id)
  call('ZADD', LEASES, int(until_ms), '=' .. id)
end
-- fields: more pairs for the hash. spec: kind resource dedup nonce attempts worker retention (as read from the hash).
local function end_job(id, state, reason, spec, fields)
  local key, failed = P .. 'job:' .. id, state == 'failed'
  local set = {'state', state, 'finished_at', int(now), 'updated_at', int(now)}
  if reason ~= '' then set[7] = 'reason'; set[8] = reason end
  for i = 1, #fields do set[#set + 1] = fields[i] end
  call('HSET', key, unpack(set))
  call('PEXPIRE', key, spec.retention or (failed and 604800000 or 86400000))
  local index = failed and DEAD or RECENT
  if is(index, 'zset') then call('ZADD', index, int(now), id) end
  if spec.dedup then
    local dedup = P .. 'dedup:' .. spec.dedup
    if is(dedup, 'string') and call('GET', dedup) == id then call('DEL', dedup) end
  end
  if spec.resource then
    if spec.nonce and spec.nonce ~= '' then free_place(spec.resource, spec.nonce) end
    if call('ZREM', LEASES, '=' .. id) == 1 then free_place(spec.resource, '=' .. id) end
  end
  count(state .. ':' .. spec.kind)
  emit(state, id, spec.kind, spec.token, spec.nonce, spec.attempts, spec.worker, reason, spec.resource)
end
-- Keep the two indexes of ended jobs bounded, by number and by age.
local function trim_ended()
  if is(RECENT, 'zset') then
    call('ZREMRANGEBYRANK', RECENT, 0, -10001)
    for _, id in ipairs(call('ZRANGEBYSCORE', RECENT, '-inf', int(now - 86400000), 'LIMIT', 0, 20)) do
      if call('EXISTS', P .. 'job:' .. id) == 0 then call('ZREM', RECENT, id) end
    end
  end
  if is(DEAD, 'zset') then
    call('ZREMRANGEBYRANK', DEAD, 0, -100001)
    for _, id in ipairs(call('ZRANGEBYSCORE', DEAD, '-inf', int(now - 86400000), 'LIMIT', 0, 20)) do
      if call('EXISTS', P .. 'job:' .. id) == 0 then call('ZREM', DEAD, id) end
    end
  end
end
