#!lua flags=allow-oom
-- pause: hand out nothing more from a queue, until it is resumed; what runs goes on, what is enqueued is kept.
-- KEYS: meta events stats leases later dead recent
-- ARGV: op (pause | resume) queue reason actor
-- RETURNS: PAUSED since_ms | RESUMED since_ms | RUNNING '' (it was not paused) | FULL number (so many are paused already)
-- TWICE: pause gets the same answer, and the first reason stays; resume is RUNNING then. Nothing is told again.
--- @include _begin
local MOST = 200 -- each claim reads the names
local op, queue, reason, actor = ARGV[1], ARGV[2], string.gsub(ARGV[3], '%c', ' '), string.gsub(ARGV[4], '%c', ' ')
if op ~= 'pause' and op ~= 'resume' then return redis.error_reply('ERR pause: no such op ' .. (op or '')) end
if string.find(queue, '%s') then return redis.error_reply('ERR pause: no queue has a blank in its name') end
by = actor
-- One line a paused queue: queue since_ms actor reason, with a tab between them.
local lines, names, since = {}, {}, nil
for line in string.gmatch(call('HGET', META, 'pauses') or '', '[^\n]+') do
  local name, at = string.match(line, '^([^\t]*)\t([^\t]*)')
  if name == queue then since = at
  else
    lines[#lines + 1] = line
    names[#names + 1] = name
  end
end
local ready = call('ZCARD', P .. 'ready:' .. queue)
if op == 'pause' then
  if since then return {'PAUSED', since} end
  if #names >= MOST then return {'FULL', int(#names)} end
  since = int(now)
  lines[#lines + 1] = queue .. '\t' .. since .. '\t' .. actor .. '\t' .. reason
  names[#names + 1] = queue
elseif not since then return {'RUNNING', ''}
end
if #names == 0 then
  call('HDEL', META, 'paused', 'pauses')
  m[7] = false
else
  m[7] = ' ' .. table.concat(names, ' ') .. ' '
  call('HSET', META, 'paused', m[7], 'pauses', table.concat(lines, '\n'))
end
if op == 'pause' then
  emit('queue_paused', '/' .. queue, '', '', '', '', reason)
  commit(false)
  return {'PAUSED', since}
end
emit('queue_resumed', '/' .. queue, '', '', '', '', reason)
commit(false)
for _ = 1, math.min(ready, 8) do ring(queue) end
wake()
return {'RESUMED', since}
