#!lua
-- acquire: take a resource without a job: a stand-alone lease with its own token; or wait in its line.
-- KEYS: meta events stats leases later dead recent
-- ARGV: resource nonce owner ttl_ms limit wait_ms (0: do not wait; -1: leave the line)
-- RETURNS: HELD token until_ms | WAIT position | BUSY holder until_ms | LEFT ''
-- TWICE: the same nonce is told its state; a waiter that calls again only shows that it is still there.
--- @include _begin
--- @include _end
--- @include _sweep
local resource, nonce, owner = ARGV[1], ARGV[2], ARGV[3]
local ttl, limit, wait_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local key, slots, line, me = P .. 'lease:' .. nonce, P .. 'slots:' .. resource, P .. 'line:' .. resource, '@' .. nonce
by = owner
call('ZCARD', slots) call('ZCARD', line) call('ZCARD', LATER)
local revoked
local function held() -- what the answer is if this nonce has the place
  local l = call('HMGET', key, 'state', 'token')
  revoked = l[1] == 'revoked'
  local till = l[1] == 'held' and call('ZSCORE', slots, me)
  return till and {'HELD', l[2], till}
end
local mine = held()
if mine then return mine end
if wait_ms < 0 then
  call('ZREM', line, me)
  call('DEL', key)
  return {'LEFT', ''}
end
sweep(20)
-- A free place goes to the head of the line. hand_over did that when it was freed, unless entries were lost.
if call('ZCARD', slots) < limit and call('ZCARD', line) > 0 then hand_over(resource) end
mine = held()
if not mine and not call('ZSCORE', line, me) and call('ZCARD', slots) < limit and call('ZCARD', line) == 0 then
  local tok, till = mint(), now + ttl
  if revoked then call('DEL', key) end -- an operator took it from this nonce, which comes anew
  call('HSET', key, 'state', 'held', 'resource', resource, 'owner', owner, 'ttl_ms', ttl, 'token', tok)
  call('PERSIST', key)
  call('ZADD', slots, till, me)
  call('ZADD', LEASES, till, me)
  count('leased', '@lease')
  emit('acquired', me, '', tok, nonce, '', '', resource)
  mine = {'HELD', tok, int(till)}
end
if mine or wait_ms == 0 then
  commit(true)
  wake()
  local head = call('ZRANGE', slots, 0, 0, 'WITHSCORES')
  return mine or {'BUSY', head[1] or '', head[2] or ''}
end
if call('ZADD', line, 'NX', int(us), me) == 1 then
  count('parked', '@lease')
  emit('parked', me, '', '', nonce, '', '', resource)
end
if revoked then call('DEL', key) end
-- Written each time: a waiter that was silent for longer than its TTL and comes back keeps its place in the line.
call('HSET', key, 'state', 'waiting', 'resource', resource, 'owner', owner, 'ttl_ms', ttl, 'limit', limit)
call('PEXPIRE', key, 5000) -- a waiter shows itself once a second
commit(true)
wake()
return {'WAIT', call('ZRANK', line, me)}
