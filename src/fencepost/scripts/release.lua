#!lua flags=allow-oom
-- release: give a stand-alone lease back; the first in line gets the place in the same step.
-- KEYS: meta events stats leases later dead recent
-- ARGV: nonce token owner
-- RETURNS: OK '' | GONE '' (it had run out, or was given back before) | STALE newest_token
-- TWICE: the second answer is GONE.
--- @include _begin
--- @include _check
--- @include _end
local nonce, tok = ARGV[1], ARGV[2]
local key, me = P .. 'lease:' .. nonce, '@' .. nonce
by = ARGV[3]
local l = call('HMGET', key, 'state', 'token', 'resource')
if not l[1] then return {'GONE', ''} end
if l[1] ~= 'held' or l[2] ~= tok and not had(key, tok, nonce) then
  refuse('release', 'STALE', l[2] or '0', me, '', tok, nonce, l[3])
  commit(false)
  return {'STALE', l[2] or '0'}
end
call('ZCARD', P .. 'slots:' .. l[3]) call('ZCARD', P .. 'line:' .. l[3])
call('DEL', key)
call('ZREM', LEASES, me)
emit('released', me, '', tok, nonce, '', '', l[3])
free_place(l[3], me)
commit(false)
wake()
return {'OK', ''}
