#!lua flags=allow-oom
-- cancel: end a job that waits; ask a running one to stop, or (hard) take it from its worker at once.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id hard ('1' or '') reason request_id
-- RETURNS: CANCELLED state | ASKED state | ILLEGAL state | GONE ''
--          state: the one the job had. ASKED: the worker learns it with its next heartbeat.
-- TWICE: the same request_id gets its answer again.
--- @include _begin
--- @include _end
local id, hard, reason, request = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4]
local key = P .. 'job:' .. id
local j = call('HMGET', key, 'state', 'kind', 'queue', 'resource', 'dedup', 'nonce', 'token', 'attempts', 'worker',
  'cancel_request', 'retention_ms', 'cancelled_from')
local state = j[1]
if not state then return {'GONE', ''} end
if state == 'cancelled' and j[10] == request then return {'CANCELLED', j[12] or ''} end
if state == 'done' or state == 'failed' or state == 'cancelled' then return {'ILLEGAL', state} end
call('ZCARD', DEAD) call('ZCARD', RECENT) call('ZCARD', LATER) call('ZCARD', P .. 'ready:' .. j[3])
if j[4] then call('ZCARD', P .. 'line:' .. j[4]) call('ZCARD', P .. 'slots:' .. j[4]) end
local spec = {kind = j[2], resource = j[4], dedup = j[5], nonce = j[6], token = j[7], attempts = j[8], worker = j[9],
  retention = j[11]}
local fields = {'cancel_request', request, 'cancelled_from', state}
if state == 'processing' and not hard then
  if j[10] ~= request then
    call('HSET', key, 'cancel', reason, 'cancel_request', request, 'updated_at', int(now))
    emit('cancel_asked', id, j[2], j[7], j[6], j[8], j[9], reason, j[4])
    commit(false)
  end
  return {'ASKED', state}
end
if state == 'processing' then
  local tok = mint() -- the worker that has it is dead from now on
  spec.token = tok
  fields[5] = 'token'; fields[6] = tok; fields[7] = 'nonce'; fields[8] = ''
  call('ZREM', LEASES, id)
elseif state == 'queued' then call('ZREM', P .. 'ready:' .. j[3], id)
elseif state == 'scheduled' then call('ZREM', LATER, id)
elseif state == 'waiting' then call('ZREM', P .. 'line:' .. j[4], id)
end
end_job(id, 'cancelled', reason, spec, fields)
commit(false)
wake()
return {'CANCELLED', state}
