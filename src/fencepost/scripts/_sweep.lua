-- _sweep: take back what lapsed, bring up what is due, in bounded batches.
local function reclaim_run(id)
  local key = P .. 'job:' .. id
  local j = is(key, 'hash') and call('HMGET', key, 'state', 'kind', 'queue', 'score', 'resource', 'nonce', 'token',
    'crashes', 'max_crashes', 'worker', 'attempts', 'cancel', 'dedup', 'failed_retention_ms', 'retention_ms') or {}
  call('ZREM', LEASES, id)
  if j[1] ~= 'processing' then count('orphan:lease') return end
  local crashes, attempts = (tonumber(j[8]) or 0) + 1, (tonumber(j[11]) or 1) - 1
  local tok = mint() -- from this instant the old holder is dead
  local spec = {kind = j[2], resource = j[5], nonce = j[6], token = tok, worker = j[10], attempts = int(attempts),
    dedup = j[13], retention = j[14]}
  local fields = {'token', tok, 'nonce', '', 'crashes', int(crashes), 'attempts', int(attempts)}
  count('crashed:' .. j[2])
  emit('lost', id, j[2], j[7], j[6], int(attempts + 1), j[10], 'lease_ran_out', j[5])
  if j[12] then
    spec.retention = j[15]
    end_job(id, 'cancelled', j[12], spec, fields)
  elseif crashes > (tonumber(j[9]) or 3) then
    fields[9] = 'error'
    fields[10] = 'the lease ran out ' .. int(crashes) .. ' times without an outcome; the last worker was ' .. (j[10] or '?')
    end_job(id, 'failed', 'poison', spec, fields)
  else
    call('HSET', key, 'state', 'queued', 'updated_at', int(now), unpack(fields))
    call('ZADD', P .. 'ready:' .. j[3], j[4], id)
    if j[5] then reserve_place(j[5], j[6], id, now + RESERVED_MS) end -- first in line at its own resource
    ring(j[3])
  end
end
local reclaimed_all = false
local function reclaim(limit)
  local lapsed = call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'LIMIT', 0, limit)
  reclaimed_all = #lapsed < limit
  for _, id in ipairs(lapsed) do
    local mark = sub(id, 1, 1)
    if mark == '=' then -- a reserved place that nobody came for
      call('ZREM', LEASES, id)
      local key = P .. 'job:' .. sub(id, 2)
      local resource = is(key, 'hash') and call('HGET', key, 'resource')
      if resource then free_place(resource, id) end
    elseif mark == '@' then
      call('ZREM', LEASES, id)
      local key = P .. 'lease:' .. sub(id, 2)
      local l = is(key, 'hash') and call('HMGET', key, 'resource', 'token', 'owner') or {}
      if l[1] then
        call('DEL', key)
        emit('lost', id, '', l[2], sub(id, 2), '', l[3], 'lease_ran_out', l[1])
        count('lease_lost:')
        free_place(l[1], id)
      end
    else
      reclaim_run(id)
    end
  end
end
local function promote(limit)
  for _, id in ipairs(call('ZRANGEBYSCORE', LATER, '-inf', int(now), 'LIMIT', 0, limit)) do
    local key = P .. 'job:' .. id
    local j = is(key, 'hash') and call('HMGET', key, 'state', 'queue', 'score') or {}
    call('ZREM', LATER, id)
    if j[1] == 'scheduled' then
      call('HSET', key, 'state', 'queued', 'updated_at', int(now))
      call('HDEL', key, 'due_at')
      call('ZADD', P .. 'ready:' .. j[2], j[3], id)
      ring(j[2])
    else
      count('orphan:later')
    end
  end
end
local function sweep(limit)
  call('ZCARD', LATER) -- a wrong type fails here, above the writes
  if not in_grace then reclaim(limit) end
  promote(limit)
  if #lines > 0 then commit(true) end
end
