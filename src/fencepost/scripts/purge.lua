#!lua flags=allow-oom
-- purge: forget ended jobs for good. A live job is never touched.
-- KEYS: meta events stats leases later dead recent
-- ARGV: reason, actor, then job ids
-- RETURNS: 2 values an id: PURGED state | ILLEGAL state | GONE ''
-- TWICE: the second time the job is GONE.
--- @include _begin
by = ARGV[2]
local reason, out, todo, seen = ARGV[1], {}, {}, {}
call('ZCARD', DEAD)
for at = 3, #ARGV do
  local id = ARGV[at]
  local j = call('HMGET', JOB .. id, 'state', 'kind', 'opts')
  local word, state = 'PURGED', not seen[id] and j[1] or ''
  if state == '' then
    word = 'GONE'
    todo[#todo + 1] = {id}
  elseif state ~= 'done' and state ~= 'failed' and state ~= 'cancelled' then word = 'ILLEGAL'
  else
    seen[id] = true
    local key = options(j[3]).dedup
    todo[#todo + 1] = {id, j[2], key and call('GET', P .. 'dedup:' .. key) == id and P .. 'dedup:' .. key}
  end
  out[#out + 1] = word
  out[#out + 1] = state
end
for _, w in ipairs(todo) do
  local id, kind, dedup = w[1], w[2], w[3]
  call('ZREM', DEAD, id)
  if kind then
    call('DEL', JOB .. id)
    if dedup then call('DEL', dedup) end
    count('purged', kind)
    emit('purged', id, kind, '', '', '', reason)
  end
end
if #todo > 0 then commit(false) end
return out
