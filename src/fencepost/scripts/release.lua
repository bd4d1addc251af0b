#!lua flags=allow-oom
-- release: give a stand-alone lease back; the first in line gets the place in the same step.
-- KEYS: meta events stats leases later dead recent
-- ARGV: nonce token owner
-- RETURNS: OK '' | GONE '' (it had run out, or was given back before) | STALE newest_token
-- TWICE: the second answer is GONE.
--- @include _begin
--- @include _end
local nonce, tok, owner = ARGV[1], ARGV[2], ARGV[3]
local key, me = P .. 'lease:' .. nonce, '@' .. nonce
local l = call('HMGET', key, 'state', 'token', 'resource')
if not l[1] then return {'GONE', ''} end
if l[2] ~= tok or l[1] ~= 'held' then
  count('refused:release')
  emit('refused_stale', me, '', tok, nonce, '', owner, 'release', l[3])
  commit(false)
  return {'STALE', l[2] or '0'}
end
call('ZCARD', P .. 'slots:' .. l[3]) call('ZCARD', P .. 'line:' .. l[3])
call('DEL', key)
call('ZREM', LEASES, me)
emit('released', me, '', tok, nonce, '', owner, '', l[3])
free_place(l[3], me)
commit(false)
wake()
return {'OK', ''}
