#!lua flags=allow-oom
-- answer: bind an idempotency key to a request; keep the answer that was made under the lease of that key.
-- KEYS: meta events stats leases later dead recent
-- ARGV: begin key fingerprint keep_ms
--       store key fingerprint keep_ms nonce token owner status about body; nonce, token: of the lease answer:<key>
-- RETURNS: NEW '' (bound now) | SAME '' (bound to this request, which has no answer yet) | CONFLICT '' (bound to another
--          request; nothing was written) | DONE status about body | STORED '' | STALE newest_token | EXPIRED '' | GONE ''
-- TWICE: begin says SAME where it said NEW; store of the same lease gets STORED again, also when the lease is over.
--- @include _begin
--- @include _check
local op, name, fingerprint, keep_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if op ~= 'begin' and op ~= 'store' then return redis.error_reply('ERR answer: no such op ' .. (op or '')) end
local key = P .. 'answer:' .. name
local a = call('HMGET', key, 'fingerprint', 'status', 'about', 'nonce', 'token')
if a[1] and a[1] ~= fingerprint then return {'CONFLICT', ''} end
if op == 'begin' then
  if a[2] then return {'DONE', a[2], a[3], call('HGET', key, 'body') or ''} end
  if a[1] then return {'SAME', ''} end
  call('HSET', key, 'fingerprint', fingerprint)
  call('PEXPIRE', key, keep_ms)
  return {'NEW', ''}
end
local nonce, tok = ARGV[5], ARGV[6]
by = ARGV[7]
if a[2] and a[4] == nonce then return {'STORED', ''} end
local me, lease = '@' .. nonce, P .. 'lease:' .. nonce
local l = call('HMGET', lease, 'state', 'token', 'resource')
if l[3] and l[3] ~= 'answer:' .. name then return redis.error_reply('ERR answer: a lease of ' .. l[3]) end
local word, newest = check(lease, {l[1] == 'held' and 'processing' or l[1], l[2], nonce}, tok, nonce, call('ZSCORE', LEASES, me))
if word == 'OK' and a[2] then word, newest = 'STALE', a[5] end -- the first answer stands
if word ~= 'OK' then
  refuse('answer', word, newest, me, '', tok, nonce, 'answer:' .. name)
  commit(false)
  return {word, newest}
end
call('HSET', key, 'fingerprint', fingerprint, 'status', ARGV[8], 'about', ARGV[9], 'body', ARGV[10], 'nonce', nonce,
  'token', tok, 'stored_at', now)
call('PEXPIRE', key, keep_ms)
return {'STORED', ''}
