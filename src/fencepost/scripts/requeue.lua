#!lua
-- requeue: start failed or cancelled jobs again as a new generation, with fresh counters. The history stays.
-- KEYS: meta events stats leases later dead recent
-- ARGV: request_id, then job ids
-- RETURNS: 2 values an id: REQUEUED generation | ILLEGAL state | DUPLICATE owner_id | GONE ''
--          DUPLICATE: its dedup key belongs to a newer live job; nothing was changed.
-- TWICE: the same request_id gets REQUEUED again; nothing starts a second time.
--- @include _begin
--- @include _end
local request, out, todo, taken, seen = ARGV[1], {}, {}, {}, {}
for at = 2, #ARGV do
  local id = ARGV[at]
  local j = call('HMGET', P .. 'job:' .. id, 'state', 'generation', 'requeue_request', 'dedup', 'queue', 'kind',
    'resource', 'priority')
  local word, more = 'REQUEUED', int((tonumber(j[2]) or 1) + 1)
  if not j[1] then
    word, more = 'GONE', ''
    todo[#todo + 1] = {id}
  elseif j[3] == request or seen[id] then more = seen[id] and more or j[2]
  elseif j[1] ~= 'failed' and j[1] ~= 'cancelled' then word, more = 'ILLEGAL', j[1]
  else
    call('ZCARD', P .. 'ready:' .. j[5])
    local owner = j[4] and (taken[j[4]] or call('GET', P .. 'dedup:' .. j[4]))
    if owner and owner ~= id then
      local o = call('HMGET', P .. 'job:' .. owner, 'state', 'dedup')
      if taken[j[4]] or (o[1] and o[2] == j[4] and o[1] ~= 'done' and o[1] ~= 'failed' and o[1] ~= 'cancelled') then
        word, more = 'DUPLICATE', owner
      end
    end
    if word == 'REQUEUED' then
      if j[4] then taken[j[4]] = id end
      seen[id] = true
      todo[#todo + 1] = {id, j, more}
    end
  end
  out[#out + 1], out[#out + 2] = word, more
end
call('ZCARD', DEAD) call('ZCARD', RECENT)
for i, w in ipairs(todo) do
  local id, j, generation = w[1], w[2], w[3]
  call('ZREM', DEAD, id) call('ZREM', RECENT, id)
  if j then
    local key, score = P .. 'job:' .. id, int(us + i - (tonumber(j[8]) or 0) * 60000000)
    call('HDEL', key, 'attempts', 'crashes', 'releases', 'reason', 'finished_at', 'result', 'cancel', 'cancel_request',
      'cancelled_from', 'progress', 'due_at', 'claimed_at', 'worker')
    call('HSET', key, 'state', 'queued', 'generation', generation, 'requeue_request', request, 'nonce', '',
      'score', score, 'requeued_at', int(now), 'updated_at', int(now))
    call('PERSIST', key)
    if j[4] then call('SET', P .. 'dedup:' .. j[4], id) end
    call('ZADD', P .. 'ready:' .. j[5], score, id)
    ring(j[5])
    count('requeued:' .. j[6])
    emit('requeued', id, j[6], '', '', '0', '', 'generation ' .. generation, j[7])
  end
end
if #todo > 0 then commit(false) end
wake()
return out
