-- _sweep: take back what lapsed, bring up what is due, in bounded batches.
local function reclaim_run(id)
  local key = JOB .. id
  local j = is(key, 'hash') and call('HMGET', key, 'state', 'kind', 'queue', 'score', 'nonce', 'token', 'crashes',
    'attempts', 'worker', 'cancel', 'opts') or {}
  call('ZREM', LEASES, id)
  -- A torn record (no kind, queue or score) is left as it is: heal names it.
  if j[1] ~= 'processing' or not (j[2] and j[3] and j[4]) then count('orphan', 'lease') return end
  local opt, kind, nonce = options(j[11]), j[2], j[5]
  local crashes, attempts, tok = (tonumber(j[7]) or 0) + 1, (tonumber(j[8]) or 1) - 1, mint()
  local fields = {'token', tok, 'nonce', '', 'crashes', crashes, 'attempts', attempts} -- from now the old holder is dead
  count('crashed', kind)
  emit('lost', id, kind, j[6], nonce, attempts + 1, 'lease_ran_out ' .. (j[9] or ''), opt.resource)
  if j[10] then
    end_job(id, key, 'cancelled', j[10], kind, tok, nonce, attempts, opt, fields)
  elseif crashes > (tonumber(opt.max_crashes) or 3) then
    fields[9] = 'error'
    fields[10] = 'the lease ran out ' .. crashes .. ' times without an outcome; the last worker was ' .. (j[9] or '?')
    end_job(id, key, 'failed', 'poison', kind, tok, nonce, attempts, opt, fields)
  else
    call('HSET', key, 'state', 'queued', 'updated_at', now, unpack(fields))
    enter(j[3], j[4], id)
    if opt.resource then reserve_place(opt.resource, nonce, id, now + RESERVED_MS) end -- first in its own line
  end
end
local reclaimed_all = false
local function reclaim(limit)
  local lapsed = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, limit)
  reclaimed_all = #lapsed < limit
  for _, id in ipairs(lapsed) do
    local mark = sub(id, 1, 1)
    if mark == '=' then -- a reserved place that nobody came for
      call('ZREM', LEASES, id)
      local key = JOB .. sub(id, 2)
      local opt = options(is(key, 'hash') and call('HGET', key, 'opts'))
      if opt.resource then free_place(opt.resource, id) end
    elseif mark == '@' then
      call('ZREM', LEASES, id)
      local key = P .. 'lease:' .. sub(id, 2)
      local l = is(key, 'hash') and call('HMGET', key, 'resource', 'token', 'owner') or {}
      if l[1] then
        call('DEL', key)
        emit('lost', id, '', l[2], sub(id, 2), '', 'lease_ran_out ' .. (l[3] or ''), l[1])
        count('crashed', '@lease')
        free_place(l[1], id)
      end
    else
      reclaim_run(id)
    end
  end
end
local function promote(limit)
  for _, id in ipairs(call('ZRANGEBYSCORE', LATER, '-inf', now, 'LIMIT', 0, limit)) do
    local key = JOB .. id
    local j = is(key, 'hash') and call('HMGET', key, 'state', 'queue', 'score') or {}
    call('ZREM', LATER, id)
    if j[1] == 'scheduled' and j[2] and j[3] then
      call('HSET', key, 'state', 'queued', 'updated_at', now)
      call('HDEL', key, 'due_at')
      enter(j[2], j[3], id)
    else
      count('orphan', 'later')
    end
  end
end
local function sweep(limit)
  local before = told
  if not in_grace then reclaim(limit) end
  promote(limit)
  if told > before then commit(true) end -- what it did stands, whatever comes after it
end
