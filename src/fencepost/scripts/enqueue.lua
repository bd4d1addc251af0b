#!lua
-- enqueue: accept a batch of jobs, each with its dedup key and its idempotency key in the same step.
-- KEYS: meta events stats leases later dead recent, then one ready key for each queue of the batch
-- ARGV: queue_limit (0 = none), then items: id queue kind payload options
--       options: '' or "name=value" lines: version priority resource limit on_busy ordered dedup max_crashes
--       retention_ms failed_retention_ms durable generation restored, kept with the job; delay_ms run_at_ms idem fingerprint idem_ttl_ms
-- RETURNS: a flat list, 3 values an item: word id state
--          QUEUED | SCHEDULED (accepted, or accepted before: the same id sent again tells its present state)
--          DUPLICATE (the dedup key belongs to the live job told) | REPLAYED (same idempotency key, same request)
--          CONFLICT (same idempotency key, other request) | FULL (the queue is at its limit, nothing stored)
-- TWICE: nothing is stored anew; a job is known by its id. A duplicate is counted and told each time.
--- @include _begin
local limit, out, n = tonumber(ARGV[1]), {}, 0
local mine, dedup, idem, depth, fresh, bind = {}, {}, {}, {}, {}, {}
call('ZCARD', LATER)
for i = 8, #KEYS do call('ZCARD', KEYS[i]) end
local function answer(word, id, state)
  out[n + 1], out[n + 2], out[n + 3] = word, id, state or ''
  n = n + 3
end
local function owner_of(key) -- the live job that holds a dedup key; an owner that is gone or ended does not count
  local id = dedup[key] or call('GET', P .. 'dedup:' .. key)
  if not id then return nil end
  if mine[id] then return id, mine[id] end
  local j = call('HMGET', JOB .. id, 'state', 'opts')
  if j[1] and options(j[2]).dedup == key and j[1] ~= 'done' and j[1] ~= 'failed' and j[1] ~= 'cancelled' then
    return id, j[1]
  end
  count('healed', 'dedup')
  return nil
end
local function full(queue)
  if limit == 0 then return false end
  depth[queue] = (depth[queue] or call('ZCARD', P .. 'ready:' .. queue)) + 1
  return depth[queue] > limit
end
-- Returns the state to store the job in, or nil where the answer is given without storing anything.
local function admit(id, queue, kind, opt)
  local known = opt.idem and (idem[opt.idem] or call('GET', P .. 'idem:' .. opt.idem))
  if known then
    local other, print = string.match(known, '^(%S+) (.*)$')
    if print ~= opt.fingerprint then return answer('CONFLICT', other, '') end
    return answer('REPLAYED', other, mine[other] or call('HGET', JOB .. other, 'state'))
  end
  local owner, owner_state
  if opt.dedup then owner, owner_state = owner_of(opt.dedup) end
  if owner then
    count('duplicate', kind)
    emit('duplicate', owner, kind, '', '', '', id, opt.resource)
    answer('DUPLICATE', owner, owner_state)
  end
  opt.due = math.max(tonumber(opt.run_at_ms) or 0, now + (tonumber(opt.delay_ms) or 0))
  if not owner and opt.due <= now and full(queue) then return answer('FULL', id, '') end
  if opt.idem then
    idem[opt.idem] = (owner or id) .. ' ' .. opt.fingerprint
    bind[#bind + 1] = opt
  end
  if owner then return nil end
  if opt.dedup then dedup[opt.dedup] = id end
  return opt.due > now and 'scheduled' or 'queued'
end
for at = 2, #ARGV, 5 do
  local id, queue, kind, text = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 4]
  local state = mine[id] or call('HGET', JOB .. id, 'state')
  if state then
    answer(state == 'scheduled' and 'SCHEDULED' or 'QUEUED', id, state)
  else
    local opt
    if text == '' then
      if full(queue) then answer('FULL', id, '') else state = 'queued' end
    else
      opt = options(text)
      state = admit(id, queue, kind, opt)
    end
    if state then
      mine[id] = state
      fresh[#fresh + 1] = {at, state, opt}
      answer(state == 'scheduled' and 'SCHEDULED' or 'QUEUED', id, state)
    end
  end
end
-- Every check stands above; from here on only writes.
local ready, later, soon = {}, {}, {}
for i, f in ipairs(fresh) do
  local at, state, opt = f[1], f[2], f[3]
  local id, queue, kind, key = ARGV[at], ARGV[at + 1], ARGV[at + 2], JOB .. ARGV[at]
  local score
  if not opt then
    score = int(us + i)
    call('HSET', key, 'state', 'queued', 'kind', kind, 'queue', queue, 'payload', ARGV[at + 3], 'score', score,
      'created_at', now)
  else
    score = int((state == 'scheduled' and opt.due * 1000 or us + i) - (tonumber(opt.priority) or 0) * 60000000)
    call('HSET', key, 'state', state, 'kind', kind, 'queue', queue, 'payload', ARGV[at + 3], 'score', score,
      'created_at', now, 'opts', ARGV[at + 4])
    if opt.dedup then call('SET', P .. 'dedup:' .. opt.dedup, id) end
    if opt.generation then call('HSET', key, 'generation', opt.generation) end
  end
  if state == 'scheduled' then
    call('HSET', key, 'due_at', opt.due)
    later[#later + 1] = opt.due
    later[#later + 1] = id
    if opt.due - now < 1000 and not soon[queue] then
      soon[queue] = true
      ring(queue)
    end
  else
    local q = ready[queue]
    if not q then q = {} ready[queue] = q end
    local e = #q
    q[e + 1], q[e + 2] = score, id
    ring(queue)
  end
  count('enqueued', kind)
  told = told + 1
  lines[told] = 'enqueued\t' .. id .. '\t' .. kind
end
for _, opt in ipairs(bind) do call('SET', P .. 'idem:' .. opt.idem, idem[opt.idem], 'PX', opt.idem_ttl_ms or 86400000) end
for queue, members in pairs(ready) do call('ZADD', P .. 'ready:' .. queue, unpack(members)) end
if #later > 0 then call('ZADD', LATER, unpack(later)) end
if told > 0 then commit(false) end
wake(soon)
return out
