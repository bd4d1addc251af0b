#!lua flags=allow-oom
-- revoke: take a run or a stand-alone lease from its holder now. All that the holder still writes is refused.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id token reason actor request_id; id "@<nonce>" is a stand-alone lease; token: as the caller saw it
-- RETURNS: REVOKED what | STALE newest_token (another one has it by now) | ILLEGAL state (nobody runs it) | GONE ''
--          what: queued (no attempt and no crash is charged) | cancelled (that had been asked for) | ended (a lease)
-- TWICE: the same request_id gets its answer again; of a lease for a minute, then GONE.
--- @include _begin
--- @include _end
local id, seen, reason, request = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
by = ARGV[4]
if sub(id, 1, 1) == '@' then
  local key = P .. 'lease:' .. sub(id, 2)
  local l = call('HMGET', key, 'state', 'token', 'resource', 'owner', 'revoke_request')
  if l[1] == 'revoked' and l[5] == request then return {'REVOKED', 'ended'} end
  if not l[1] or l[1] == 'revoked' then return {'GONE', ''} end
  if l[1] ~= 'held' then return {'ILLEGAL', l[1]} end
  if l[2] ~= seen then return {'STALE', l[2] or '0'} end
  call('ZCARD', P .. 'slots:' .. l[3]) call('ZCARD', P .. 'line:' .. l[3])
  -- For a minute it says so, to its holder and to who asked for it, should the answer be lost.
  call('HSET', key, 'state', 'revoked', 'token', mint(), 'revoke_request', request)
  call('HDEL', key, 'bumped')
  call('PEXPIRE', key, 60000)
  call('ZREM', LEASES, id)
  count('revoked', '@lease')
  emit('lost', id, '', l[2], sub(id, 2), '', 'revoked from ' .. (l[4] or '?') .. ': ' .. reason, l[3])
  free_place(l[3], id)
  commit(false)
  wake()
  return {'REVOKED', 'ended'}
end
local key = JOB .. id
local j = call('HMGET', key, 'state', 'kind', 'queue', 'score', 'nonce', 'token', 'attempts', 'worker', 'cancel', 'opts',
  'revoke_request')
local opt, kind, nonce, what = options(j[10]), j[2], j[5], j[9] and 'cancelled' or 'queued'
if not j[1] then return {'GONE', ''} end
local was = string.match(j[11] or '', '^%S+') -- before the request, which may have blanks
if was and j[11] == was .. ' ' .. request then return {'REVOKED', was} end
if j[1] ~= 'processing' then return {'ILLEGAL', j[1]} end
if j[6] ~= seen then return {'STALE', j[6] or '0'} end
if not (kind and j[3] and j[4]) then return {'ILLEGAL', 'torn'} end -- heal names what is torn
call('ZCARD', DEAD) call('ZCARD', P .. 'ready:' .. j[3])
if opt.resource then call('ZCARD', P .. 'line:' .. opt.resource) call('ZCARD', P .. 'slots:' .. opt.resource) end
local attempts, tok = (tonumber(j[7]) or 1) - 1, mint()
local fields = {'token', tok, 'nonce', '', 'attempts', attempts, 'revoke_request', what .. ' ' .. request}
call('ZREM', LEASES, id)
call('HINCRBY', key, 'releases', 1)
count('revoked', kind)
emit('lost', id, kind, j[6], nonce, attempts + 1, 'revoked from ' .. (j[8] or '?') .. ': ' .. reason, opt.resource)
if j[9] then
  end_job(id, key, 'cancelled', j[9], kind, tok, nonce, attempts, opt, fields)
else
  call('HSET', key, 'state', 'queued', 'updated_at', now, unpack(fields))
  enter(j[3], j[4], id)
  if opt.resource then reserve_place(opt.resource, nonce, id, now + RESERVED_MS) end -- first in its own line
end
commit(false)
wake()
return {'REVOKED', what}
