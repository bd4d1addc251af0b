-- _claim: hand out up to n ready jobs, each with a new token, a nonce and a lease.
-- ready: list of {queue, most, key} in the order to serve. Fills the three lists of claim.lua; returns the number of
-- runs, and whether it stopped looking because too many of the jobs it met could not run.
local jobs, queues, extras, NONE = {}, {}, {}, {}
-- A run that is not the first, or has options: the values that plain first runs do without.
local function add_extras(index, old, opt)
  local n = #extras
  extras[n + 1], extras[n + 2], extras[n + 3] = index, opt.resource or '', opt.version or ''
  local before = old ~= NONE or opt.restored -- an r behind the crashes: the ledger put it back, what it had kept is lost
  extras[n + 4] = before and (old[1] or '0') .. (opt.restored and 'r' or '') or ''
  extras[n + 5] = old[2] or ''
end
-- Back in a while, no attempt charged.
local function put_off(id, key, kind, due, why, resource)
  call('HSET', key, 'state', 'scheduled', 'due_at', due, 'updated_at', now)
  call('HINCRBY', key, 'releases', 1)
  call('ZADD', LATER, due, id)
  count('put_off', kind)
  emit('released', id, kind, '', '', '', why, resource)
end
-- When a worker dies, all its runs crash, and one of them may have killed it. From its second crash on a job is a
-- suspect: a worker has one suspect at a time, so that the innocent are not taken along until they count as poison.
local function is_suspect(old, opt)
  local crashes = tonumber(old[1]) or 0
  return crashes > 0 and crashes >= math.min(2, tonumber(opt.max_crashes) or 3)
end
local function has_suspect() -- this worker's run of one, if it still goes on
  local id, run = string.match(call('HGET', KEYS[8], 'suspect') or '', '^(%S+) (%S+)$')
  local s = id and is(JOB .. id, 'hash') and call('HMGET', JOB .. id, 'state', 'nonce') or {}
  return s[1] == 'processing' and s[2] == run
end
-- The declared behaviour of a job whose resource is taken. No attempt is charged.
local function busy(id, key, kind, queue, attempts, opt)
  local policy, resource = opt.on_busy or 'wait', opt.resource
  if policy == 'wait' and not is(P .. 'line:' .. resource, 'zset') then policy = 'later:5000' end
  if policy == 'wait' then
    call('HSET', key, 'state', 'waiting', 'updated_at', now)
    call('ZADD', P .. 'line:' .. resource, call('HGET', key, 'score') or int(us), id)
    count('parked', kind)
    emit('parked', id, kind, '', '', '', '', resource)
  elseif policy == 'skip' then
    end_job(id, key, 'cancelled', 'busy', kind, '', '', attempts, opt, {})
  elseif policy == 'fail' then
    end_job(id, key, 'failed', 'busy', kind, '', '', attempts, opt, {'error', 'the resource ' .. resource .. ' was taken'})
  else -- later:<ms>
    put_off(id, key, kind, now + tonumber(sub(policy, 7)), 'busy', resource)
  end
end
-- A place whose holder is long past its deadline, after a sweep that took back all that had lapsed, belongs to nobody
-- (its record was lost by hand or by a partial restore).
local function taken_places(slots)
  local n = call('ZCARD', slots)
  if n > 0 and reclaimed_all and call('ZREMRANGEBYSCORE', slots, '-inf', now - 60000) > 0 then
    count('orphan', 'slot')
    n = call('ZCARD', slots)
  end
  return n
end
local function claim(n, nonce, worker, lease_ms, ready, budget)
  local at, taken, deadline, now_text = 0, 0, int(now + lease_ms), int(now)
  for _, q in ipairs(ready) do
    local queue, most, rkey, got = q[1], q[2], q[3], 0
    if is_paused(queue) then most = 0 end
    while taken < n and got < most and budget > 0 do
      local want = math.min(n - taken, most - got, budget, 1000) -- unpack takes no more than 8000 values
      local ids = call('ZRANGE', rkey, 0, want - 1)
      if #ids == 0 then break end
      budget = budget - #ids
      local found, opts, keys, leases, l = {}, {}, {}, {}, 0
      for i, id in ipairs(ids) do
        local key = JOB .. id
        -- The sweep and the outcomes of finish are written by now: a key of a wrong type is no job, but no error either.
        local j = redis.pcall('HMGET', key, 'state', 'kind', 'payload', 'attempts', 'opts')
        found[i], keys[i] = j, key
        if j[5] then opts[i] = options(j[5]) end
      end
      call('ZREMRANGEBYRANK', rkey, 0, #ids - 1)
      for i, id in ipairs(ids) do
        local j, opt, key, free, old, suspect = found[i], opts[i] or NONE, keys[i], true, NONE, false
        local slots = opt.resource and P .. 'slots:' .. opt.resource
        if slots then
          if not is(slots, 'zset') then free, opt.on_busy = false, 'later:5000'
          elseif taken_places(slots) >= (tonumber(opt.limit) or 1) then free = call('ZSCORE', slots, '=' .. id)
          elseif opt.limit and call('ZSCORE', slots, nonce .. '.' .. taken + 1) then free = false end -- a nonce used twice
        end
        if j[4] and free then -- it ran before
          old = call('HMGET', key, 'crashes', 'checkpoint')
          suspect = is_suspect(old, opt)
        end
        if j[1] ~= 'queued' or not j[2] then -- ended, gone or torn: heal names what is torn
          count('orphan', 'ready')
        elseif not free then
          busy(id, key, j[2], queue, j[4], opt)
        elseif suspect and has_suspect() then
          put_off(id, key, j[2], now + 1000, 'suspect', opt.resource)
        else
          taken, got = taken + 1, got + 1
          local run, tok, attempt, kind = nonce .. '.' .. taken, mint(), (tonumber(j[4]) or 0) + 1, j[2]
          call('HSET', key, 'state', 'processing', 'token', tok, 'nonce', run, 'worker', worker, 'attempts', attempt,
            'claimed_at', now_text)
          if slots then
            if call('ZREM', LEASES, '=' .. id) == 1 then call('ZREM', slots, '=' .. id) end
            call('ZADD', slots, deadline, run)
          end
          leases[l + 1], leases[l + 2] = deadline, id
          l = l + 2
          told = told + 1
          lines[told] = 'acquired\t' .. id .. '\t' .. kind .. '\t' .. tok .. '\t' .. run .. '\t' .. attempt
            .. (slots and '\t\t' .. opt.resource or '\t\t')
          jobs[at + 1], jobs[at + 2], jobs[at + 3], jobs[at + 4], jobs[at + 5] = id, kind, j[3] or '', tok, attempt
          at = at + 5
          if opts[i] or j[4] then add_extras(taken, old, opt) end
          if suspect then call('HSET', KEYS[8], 'suspect', id .. ' ' .. run) end
        end
      end
      if l > 0 then call('ZADD', LEASES, unpack(leases)) end
    end
    if got > 0 then
      queues[#queues + 1] = queue
      queues[#queues + 1] = got
    end
  end
  return taken, budget == 0
end
