-- _claim: hand out up to n ready jobs, each with a new token, a nonce and a lease.
-- ready: list of {queue, most} in the order to serve. Returns a flat list, 11 values a job, see claim.lua.
local FIELDS = {'state', 'kind', 'payload', 'attempts', 'crashes', 'version', 'checkpoint', 'resource', 'created_at',
  'limit', 'on_busy', 'score', 'dedup', 'retention_ms', 'failed_retention_ms', 'cancel'}
local function take(out, id, queue, j, tok, attempt)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5] = id, j[2] or '', queue, j[3] or '', tok
  out[n + 6], out[n + 7], out[n + 8], out[n + 9] = attempt, j[5] or '0', j[6] or '1', j[7] or ''
  out[n + 10], out[n + 11] = j[8] or '', j[9] or ''
end
-- The declared behaviour of a job whose resource is taken. No attempt is charged.
local function busy(id, queue, j)
  local key, policy, resource = P .. 'job:' .. id, j[11] or 'wait', j[8]
  if policy == 'wait' and not is(P .. 'line:' .. resource, 'zset') then policy = 'later:5000' end
  call('ZREM', P .. 'ready:' .. queue, id)
  local spec = {kind = j[2], resource = nil, dedup = j[13], attempts = j[4]}
  if policy == 'wait' then
    call('HSET', key, 'state', 'waiting', 'updated_at', int(now))
    call('ZADD', P .. 'line:' .. resource, j[12], id)
    count('parked:' .. j[2])
    emit('parked', id, j[2], '', '', '', '', '', resource)
  elseif policy == 'skip' then
    spec.retention = j[14]
    end_job(id, 'cancelled', 'busy', spec, {})
  elseif policy == 'fail' then
    spec.retention = j[15]
    end_job(id, 'failed', 'busy', spec, {'error', 'the resource ' .. resource .. ' was taken'})
  else -- later:<ms>
    local due = now + tonumber(sub(policy, 7))
    call('HSET', key, 'state', 'scheduled', 'due_at', int(due), 'updated_at', int(now))
    call('HINCRBY', key, 'releases', 1)
    call('ZADD', LATER, int(due), id)
    count('put_off:' .. j[2])
    emit('released', id, j[2], '', '', '', '', 'busy', resource)
  end
end
-- A place whose holder is long past its deadline, after a sweep that took back all that had lapsed, belongs to nobody
-- (its record was lost by hand or by a partial restore).
local function drop_leaked(slots)
  if reclaimed_all and call('ZREMRANGEBYSCORE', slots, '-inf', int(now - 60000)) > 0 then count('orphan:slot') end
end
local function claim(n, nonce, worker, lease_ms, ready, budget)
  local out, taken, deadline = {}, 0, int(now + lease_ms)
  for _, q in ipairs(ready) do
    local queue, most = q[1], q[2]
    local rkey, got = P .. 'ready:' .. queue, 0
    while taken < n and got < most and budget > 0 do
      local want = n - taken
      if want > most - got then want = most - got end
      if want > budget then want = budget end
      local ids = call('ZRANGE', rkey, 0, want - 1)
      if #ids == 0 then break end
      budget = budget - #ids
      local jobs, gone, leases = {}, {rkey}, {}
      for i, id in ipairs(ids) do
        jobs[i] = call('HMGET', P .. 'job:' .. id, unpack(FIELDS))
        if jobs[i][8] and call('ZCARD', P .. 'slots:' .. jobs[i][8]) > 0 then drop_leaked(P .. 'slots:' .. jobs[i][8]) end
      end
      for i, id in ipairs(ids) do
        local j, free, slots = jobs[i], true, nil
        if j[8] then
          slots = P .. 'slots:' .. j[8]
          free = call('ZCARD', slots) < (tonumber(j[10]) or 1) or call('ZSCORE', slots, '=' .. id)
        end
        if j[1] ~= 'queued' then
          gone[#gone + 1] = id
          count('orphan:ready')
        elseif not free then
          busy(id, queue, j)
        else
          taken, got = taken + 1, got + 1
          local run, tok, attempt = nonce .. '.' .. taken, mint(), int((tonumber(j[4]) or 0) + 1)
          call('HSET', P .. 'job:' .. id, 'state', 'processing', 'token', tok, 'nonce', run, 'worker', worker,
            'attempts', attempt, 'claimed_at', int(now))
          if slots then
            if free ~= true then call('ZREM', slots, '=' .. id) call('ZREM', LEASES, '=' .. id) end
            call('ZADD', slots, deadline, run)
          end
          gone[#gone + 1] = id
          leases[#leases + 1] = deadline
          leases[#leases + 1] = id
          emit('acquired', id, j[2], tok, run, attempt, worker, '', j[8])
          take(out, id, queue, j, tok, attempt)
        end
      end
      if #leases > 0 then call('ZADD', LEASES, unpack(leases)) end
      if #gone > 1 then call('ZREM', unpack(gone)) end
    end
  end
  return out, taken
end
