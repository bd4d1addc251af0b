#!lua flags=allow-oom
-- credential: write a credential of the HTTP service, or forget one; who did it and why is told as an event.
-- KEYS: meta events stats leases later dead recent
-- ARGV: op (make | revoke) id record reason actor
-- RETURNS: MADE '' | TAKEN '' (the id is that of another record) | FULL number (so many there are) | REVOKED record
--          | GONE ''
-- TWICE: make of the same record gets its answer again; revoke is GONE then. Nothing is told again.
--- @include _begin
local MOST = 1000 -- they are listed in one answer
local op, id, record, reason, actor = ARGV[1], ARGV[2], ARGV[3], ARGV[4], string.gsub(ARGV[5], '%c', ' ')
if op ~= 'make' and op ~= 'revoke' then return redis.error_reply('ERR credential: no such op ' .. (op or '')) end
by = actor
local key = P .. 'credentials'
local there, number = call('HGET', key, id), call('HLEN', key)
if op == 'make' then
  if there then return {there == record and 'MADE' or 'TAKEN', ''} end
  if number >= MOST then return {'FULL', int(number)} end
  call('HSET', key, id, record)
  emit('credential_made', '%' .. id, '', '', '', '', reason)
  commit(false)
  return {'MADE', ''}
end
if not there then return {'GONE', ''} end
call('HDEL', key, id)
emit('credential_revoked', '%' .. id, '', '', '', '', reason)
commit(false)
return {'REVOKED', there}
