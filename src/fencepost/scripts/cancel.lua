#!lua flags=allow-oom
-- cancel: end a job that waits; ask a running one to stop, or (hard) take it from its worker at once.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id hard ('1' or '') reason request_id actor token
--       token: that of the job as the caller saw it, or '': whatever it is by now
-- RETURNS: CANCELLED state | ASKED state | ILLEGAL state | STALE newest_token | GONE ''
--          state: the one the job had. ASKED: the worker learns it with its next heartbeat.
-- TWICE: the same request_id gets its answer again.
--- @include _begin
--- @include _end
local id, hard, reason, request, seen = ARGV[1], ARGV[2] == '1', ARGV[3], ARGV[4], ARGV[6]
by = ARGV[5]
local key = JOB .. id
local j = call('HMGET', key, 'state', 'kind', 'queue', 'nonce', 'token', 'attempts', 'opts', 'cancel_request',
  'cancelled_from')
local state, opt = j[1], options(j[7])
if not state then return {'GONE', ''} end
if state == 'cancelled' and j[8] == request then return {'CANCELLED', j[9] or ''} end
if state == 'done' or state == 'failed' or state == 'cancelled' then return {'ILLEGAL', state} end
if seen ~= '' and seen ~= j[5] then return {'STALE', j[5] or '0'} end
call('ZCARD', DEAD) call('ZCARD', LATER) call('ZCARD', P .. 'ready:' .. j[3])
if opt.resource then call('ZCARD', P .. 'line:' .. opt.resource) call('ZCARD', P .. 'slots:' .. opt.resource) end
if state == 'processing' and not hard then
  if j[8] ~= request then
    call('HSET', key, 'cancel', reason, 'cancel_request', request, 'updated_at', now)
    emit('cancel_asked', id, j[2], j[5], j[4], j[6], reason, opt.resource)
    commit(false)
  end
  return {'ASKED', state}
end
local fields, tok = {'cancel_request', request, 'cancelled_from', state}, j[5]
if state == 'processing' then
  tok = mint() -- the worker that has it is dead from now on
  fields[5], fields[6], fields[7], fields[8] = 'token', tok, 'nonce', ''
  call('ZREM', LEASES, id)
elseif state == 'queued' then call('ZREM', P .. 'ready:' .. j[3], id)
elseif state == 'scheduled' then call('ZREM', LATER, id)
elseif state == 'waiting' then call('ZREM', P .. 'line:' .. opt.resource, id)
end
end_job(id, key, 'cancelled', reason, j[2], tok, j[4], j[6], opt, fields)
commit(false)
wake()
return {'CANCELLED', state}
