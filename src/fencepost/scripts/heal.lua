#!lua flags=allow-oom
-- heal: put right half states that no script makes, but a partial restore or a hand can: a live job that stands in
--       no list. A run without a lease entry gets one that has run out, so that the next sweep takes it back.
-- KEYS: meta events stats leases later dead recent
-- ARGV: dry_run ('1' or ''), then job ids
-- RETURNS: 2 values an id: SOUND state | HEALED what | BROKEN state | GONE ''
--          BROKEN: its record lacks what a live job needs; nothing can be done with it but to delete it by hand.
-- TWICE: the second answer is SOUND.
--- @include _begin
local dry, out, todo = ARGV[1] == '1', {}, {}
call('ZCARD', LATER)
for at = 2, #ARGV do
  local id = ARGV[at]
  local j = call('HMGET', JOB .. id, 'state', 'queue', 'score', 'due_at', 'kind', 'opts')
  local state, resource, word, what, index, score = j[1], options(j[6]).resource, 'SOUND', nil, nil, nil
  local live = state == 'processing' or state == 'queued' or state == 'scheduled' or state == 'waiting'
  if not state then word = 'GONE'
  elseif live and not (j[2] and j[3] and j[5] and (resource or state ~= 'waiting')) then word, live = 'BROKEN', false
  elseif state == 'processing' then index, score, what = LEASES, now, 'run without a lease'
  elseif state == 'queued' then index, score, what = P .. 'ready:' .. j[2], j[3], 'queued, but in no queue'
  elseif state == 'scheduled' then index, score, what = LATER, j[4] or now, 'scheduled, but not in later'
  elseif state == 'waiting' then index, score, what = P .. 'line:' .. resource, j[3], 'waiting, but in no line'
  end
  if live and state == 'waiting' and call('ZCARD', P .. 'slots:' .. resource) == 0 then
    -- Nobody holds the place: back to the queue, where claim gives it.
    word, what = 'HEALED', 'waiting for a free resource'
    todo[#todo + 1] = {id, P .. 'ready:' .. j[2], j[3], 'queued', j, index}
  elseif index and not call('ZSCORE', index, id) then
    word = 'HEALED'
    todo[#todo + 1] = {id, index, score, state, j}
  end
  out[#out + 1] = word
  out[#out + 1] = word == 'HEALED' and what or state or ''
end
if dry or #todo == 0 then return out end
for _, w in ipairs(todo) do
  local id, index, score, state, j = w[1], w[2], w[3], w[4], w[5]
  if w[6] then
    call('ZREM', w[6], id)
    call('HSET', JOB .. id, 'state', state)
  end
  if state == 'queued' then enter(j[2], score, id) else call('ZADD', index, score, id) end
  count('healed', state)
  emit('healed', id, j[5], '', '', '', state)
end
commit(false)
wake()
return out
