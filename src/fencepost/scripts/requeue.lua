#!lua
-- requeue: start failed or cancelled jobs again as a new generation, with fresh counters. The history stays.
-- KEYS: meta events stats leases later dead recent
-- ARGV: request_id, least (of the new generations; 0: one more than the old one), reason, actor, then job ids
-- RETURNS: 2 values an id: REQUEUED generation | ILLEGAL state | DUPLICATE owner_id | GONE ''
--          DUPLICATE: its dedup key belongs to a newer live job; nothing was changed.
-- TWICE: the same request_id gets REQUEUED again; nothing starts a second time.
--- @include _begin
by = ARGV[4]
local why = ARGV[3] ~= '' and ': ' .. ARGV[3] or ''
local request, least, out, todo, taken, seen = ARGV[1], tonumber(ARGV[2]), {}, {}, {}, {}
local function live_owner(key, id) -- another live job that has the dedup key
  local owner = taken[key] or call('GET', P .. 'dedup:' .. key)
  if not owner or owner == id then return nil end
  if taken[key] then return owner end
  local o = call('HMGET', JOB .. owner, 'state', 'opts')
  local ended = not o[1] or o[1] == 'done' or o[1] == 'failed' or o[1] == 'cancelled'
  return not ended and options(o[2]).dedup == key and owner or nil
end
for at = 5, #ARGV do
  local id = ARGV[at]
  local j = call('HMGET', JOB .. id, 'state', 'generation', 'requeue_request', 'queue', 'kind', 'opts')
  local word, more, opt = 'REQUEUED', int(math.max((tonumber(j[2]) or 1) + 1, least)), options(j[6])
  if not j[1] then
    word, more = 'GONE', ''
    todo[#todo + 1] = {id}
  elseif seen[id] then more = seen[id]
  elseif j[3] == request then more = j[2]
  elseif j[1] ~= 'failed' and j[1] ~= 'cancelled' then word, more = 'ILLEGAL', j[1]
  else
    call('ZCARD', P .. 'ready:' .. j[4])
    local owner = opt.dedup and live_owner(opt.dedup, id)
    if owner then
      word, more = 'DUPLICATE', owner
    else
      if opt.dedup then taken[opt.dedup] = id end
      seen[id] = more
      todo[#todo + 1] = {id, j, more, opt}
    end
  end
  out[#out + 1] = word
  out[#out + 1] = more
end
call('ZCARD', DEAD)
for i, w in ipairs(todo) do
  local id, j, generation, opt = w[1], w[2], w[3], w[4]
  call('ZREM', DEAD, id)
  if j then
    local key, score = JOB .. id, int(us + i - (tonumber(opt.priority) or 0) * 60000000)
    call('HDEL', key, 'crashes', 'releases', 'reason', 'finished_at', 'result', 'cancel', 'cancel_request',
      'cancelled_from', 'progress', 'unknown_since', 'checkpoint', 'due_at', 'claimed_at', 'worker')
    call('HSET', key, 'state', 'queued', 'generation', generation, 'requeue_request', request, 'nonce', '', 'attempts', 0,
      'score', score, 'requeued_at', now, 'updated_at', now)
    call('PERSIST', key)
    if opt.dedup then call('SET', P .. 'dedup:' .. opt.dedup, id) end
    call('ZADD', P .. 'ready:' .. j[4], score, id)
    ring(j[4])
    count('requeued', j[5])
    emit('requeued', id, j[5], '', '', '0', 'generation ' .. generation .. why, opt.resource)
  end
end
if #todo > 0 then commit(false) end
wake()
return out
