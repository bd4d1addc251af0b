#!lua
-- enqueue: accept a batch of jobs, each with its dedup key and its idempotency key in the same step.
-- KEYS: meta events stats leases later dead recent, then one ready key for each queue of the batch
-- ARGV: queue_limit (0 = none), then items: id queue kind payload priority delay_ms run_at_ms pairs (field value)...
--       fields: version resource limit on_busy ordered dedup idem fingerprint idem_ttl_ms max_crashes retention_ms
--       failed_retention_ms headers; delay_ms and run_at_ms are '' where not wanted.
-- RETURNS: a flat list, 3 values an item: word id state
--          QUEUED | SCHEDULED (accepted, or accepted before: the same id sent again tells its present state)
--          DUPLICATE (the dedup key belongs to the live job told) | REPLAYED (same idempotency key, same request)
--          CONFLICT (same idempotency key, other request) | FULL (the queue is at its limit, nothing stored)
-- TWICE: nothing is stored anew; a job is known by its id.
--- @include _begin
local limit, at, items = tonumber(ARGV[1]), 2, {}
while at <= #ARGV do
  local it = {id = ARGV[at], queue = ARGV[at + 1], kind = ARGV[at + 2], payload = ARGV[at + 3],
    priority = tonumber(ARGV[at + 4]), delay = tonumber(ARGV[at + 5]), run_at = tonumber(ARGV[at + 6]), opt = {}}
  local pairs_n = tonumber(ARGV[at + 7])
  at = at + 8
  for _ = 1, pairs_n do
    it.opt[ARGV[at]] = ARGV[at + 1]
    at = at + 2
  end
  items[#items + 1] = it
end
call('ZCARD', LATER)
local depth, mine, dedup, idem, out, fresh = {}, {}, {}, {}, {}, {}
local function answer(word, id, state)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = word, id, state or ''
end
local function state_of(id) return mine[id] or call('HGET', P .. 'job:' .. id, 'state') end
local function owner_of(key) -- the live job that holds a dedup key; an owner that is gone or ended does not count
  local id = dedup[key] or call('GET', P .. 'dedup:' .. key)
  if not id then return nil end
  if mine[id] then return id, mine[id] end
  local j = call('HMGET', P .. 'job:' .. id, 'state', 'dedup')
  if j[1] and j[2] == key and j[1] ~= 'done' and j[1] ~= 'failed' and j[1] ~= 'cancelled' then return id, j[1] end
  count('healed:dedup')
  return nil
end
for _, it in ipairs(items) do
  local opt, known = it.opt, nil
  if not depth[it.queue] then depth[it.queue] = call('ZCARD', P .. 'ready:' .. it.queue) end
  if opt.idem then
    known = idem[opt.idem] or call('GET', P .. 'idem:' .. opt.idem)
  end
  local state = state_of(it.id)
  if state then
    answer(state == 'scheduled' and 'SCHEDULED' or 'QUEUED', it.id, state)
  elseif known then
    local id, print = string.match(known, '^(%S+) (.*)$')
    if print == opt.fingerprint then answer('REPLAYED', id, state_of(id) or '') else answer('CONFLICT', id, '') end
  else
    local owner, owner_state
    if opt.dedup then owner, owner_state = owner_of(opt.dedup) end
    if owner then
      answer('DUPLICATE', owner, owner_state)
      count('duplicate:' .. it.kind)
      emit('duplicate', owner, it.kind, '', '', '', '', it.id, opt.resource)
      if opt.idem then idem[opt.idem] = owner .. ' ' .. opt.fingerprint end
    elseif limit > 0 and depth[it.queue] >= limit then
      answer('FULL', it.id, '')
    else
      it.due = it.run_at or (now + (it.delay or 0))
      it.state = it.due > now and 'scheduled' or 'queued'
      mine[it.id] = it.state
      if opt.dedup then dedup[opt.dedup] = it.id end
      if opt.idem then idem[opt.idem] = it.id .. ' ' .. opt.fingerprint end
      depth[it.queue] = depth[it.queue] + 1
      fresh[#fresh + 1] = it
      answer(it.state == 'scheduled' and 'SCHEDULED' or 'QUEUED', it.id, it.state)
    end
  end
  if opt.idem and idem[opt.idem] then it.idem = idem[opt.idem] end
end
-- Every check stands above; from here on only writes.
local ready, later = {}, {}
for i, it in ipairs(fresh) do
  local arrival = it.state == 'scheduled' and it.due * 1000 or us + i
  local score = int(arrival - it.priority * 60000000)
  local set = {'state', it.state, 'kind', it.kind, 'queue', it.queue, 'payload', it.payload, 'score', score,
    'created_at', int(now)}
  if it.priority > 0 then set[#set + 1] = 'priority'; set[#set + 1] = it.priority end
  if it.state == 'scheduled' then set[#set + 1] = 'due_at'; set[#set + 1] = int(it.due) end
  for field, value in pairs(it.opt) do
    if field ~= 'fingerprint' and field ~= 'idem_ttl_ms' then set[#set + 1] = field; set[#set + 1] = value end
  end
  call('HSET', P .. 'job:' .. it.id, unpack(set))
  if it.opt.dedup then call('SET', P .. 'dedup:' .. it.opt.dedup, it.id) end
  if it.state == 'scheduled' then
    later[#later + 1] = int(it.due); later[#later + 1] = it.id
  else
    local q = ready[it.queue] or {}
    ready[it.queue] = q
    q[#q + 1] = score; q[#q + 1] = it.id
    ring(it.queue)
  end
  count('enqueued:' .. it.kind)
  emit('enqueued', it.id, it.kind, '', '', '0', '', '', it.opt.resource)
end
for _, it in ipairs(items) do
  if it.idem then call('SET', P .. 'idem:' .. it.opt.idem, it.idem, 'PX', it.opt.idem_ttl_ms or 86400000, 'NX') end
end
for queue, members in pairs(ready) do call('ZADD', P .. 'ready:' .. queue, unpack(members)) end
if #later > 0 then call('ZADD', LATER, unpack(later)) end
if #lines > 0 then commit(false) end
wake()
return out
