#!lua flags=allow-oom
-- conclude: end live jobs as the ledger knows that they ended, where this server has lost that. A run of such a job
--           is dead from then on.
-- KEYS: meta events stats leases later dead recent
-- ARGV: items: id generation state reason result; state: done | failed | cancelled
-- RETURNS: 2 values an item: CONCLUDED state (which it had) | ILLEGAL state (it has ended) | NEWER generation | GONE ''
--          NEWER: it was requeued after what the ledger knows; nothing was changed.
-- TWICE: the second answer is ILLEGAL.
--- @include _begin
--- @include _end
local ENDED = {done = true, failed = true, cancelled = true}
local out, todo, seen = {}, {}, {}
call('ZCARD', DEAD) call('ZCARD', LATER)
for at = 1, #ARGV, 5 do
  local id, state = ARGV[at], ARGV[at + 2]
  if not ENDED[state] then return redis.error_reply('ERR conclude: ' .. (state or '') .. ' is no final state') end
  local j = call('HMGET', JOB .. id, 'state', 'generation', 'kind', 'queue', 'nonce', 'attempts', 'opts', 'token')
  local word, more, opt = 'CONCLUDED', j[1], options(j[7])
  j[4] = j[4] or '' -- a torn record can be ended all the same
  if not j[1] then word, more = 'GONE', ''
  elseif seen[id] then word, more = 'ILLEGAL', seen[id]
  elseif ENDED[j[1]] then word = 'ILLEGAL'
  elseif (tonumber(j[2]) or 1) > tonumber(ARGV[at + 1]) then word, more = 'NEWER', j[2]
  else
    call('ZCARD', P .. 'ready:' .. j[4])
    if opt.resource then call('ZCARD', P .. 'line:' .. opt.resource) call('ZCARD', P .. 'slots:' .. opt.resource) end
    seen[id] = state
    todo[#todo + 1] = {at, j, opt}
  end
  out[#out + 1] = word
  out[#out + 1] = more
end
for _, w in ipairs(todo) do
  local at, j, opt = w[1], w[2], w[3]
  local id, state, fields, tok = ARGV[at], ARGV[at + 2], {}, j[8]
  j[1] = call('HGET', JOB .. id, 'state') -- one that waited may have been handed a place by an item before it
  if j[1] == 'processing' then
    tok = mint()
    fields = {'token', tok, 'nonce', ''}
    call('ZREM', LEASES, id)
  elseif j[1] == 'queued' then call('ZREM', P .. 'ready:' .. j[4], id)
  elseif j[1] == 'scheduled' then call('ZREM', LATER, id)
  elseif opt.resource then call('ZREM', P .. 'line:' .. opt.resource, id)
  end
  if ARGV[at + 4] ~= '' then
    fields[#fields + 1] = 'result'
    fields[#fields + 1] = ARGV[at + 4]
  end
  end_job(id, JOB .. id, state, ARGV[at + 3], j[3] or '', tok, j[5], j[6], opt, fields, 'concluded')
end
if #todo > 0 then
  commit(false)
  wake()
end
return out
