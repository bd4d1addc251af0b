#!lua flags=allow-oom
-- purge: forget ended jobs for good. A live job is never touched.
-- KEYS: meta events stats leases later dead recent
-- ARGV: reason, then job ids
-- RETURNS: 2 values an id: PURGED state | ILLEGAL state | GONE ''
-- TWICE: the second time the job is GONE.
--- @include _begin
local reason, out, todo = ARGV[1], {}, {}
call('ZCARD', DEAD) call('ZCARD', RECENT)
for at = 2, #ARGV do
  local id = ARGV[at]
  local j = call('HMGET', P .. 'job:' .. id, 'state', 'kind', 'dedup', 'resource')
  local word, state = 'PURGED', j[1] or ''
  if not j[1] then word = 'GONE' todo[#todo + 1] = {id}
  elseif state ~= 'done' and state ~= 'failed' and state ~= 'cancelled' then word = 'ILLEGAL'
  else
    local own = j[3] and call('GET', P .. 'dedup:' .. j[3]) == id
    todo[#todo + 1] = {id, j, own}
  end
  out[#out + 1], out[#out + 2] = word, state
end
for _, w in ipairs(todo) do
  local id, j, own = w[1], w[2], w[3]
  call('ZREM', DEAD, id) call('ZREM', RECENT, id)
  if j then
    call('DEL', P .. 'job:' .. id)
    if own then call('DEL', P .. 'dedup:' .. j[3]) end
    count('purged:' .. j[2])
    emit('purged', id, j[2], '', '', '', '', reason, j[4])
  end
end
if #todo > 0 then commit(false) end
return out
