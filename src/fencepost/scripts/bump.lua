#!lua flags=allow-oom
-- bump: give a holder whose lease is good a token above floor: SQL has seen a higher one than this server remembers.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id token nonce worker floor where; id "@<nonce>" is a stand-alone lease; where: install | verify
-- RETURNS: OK token | STALE newest_token | EXPIRED '' | GONE ''; see _check. A refusal is counted under `where`.
-- TWICE: the token of the first call, which is above floor by now; no other is minted.
--- @include _begin
--- @include _check
local id, tok, nonce, floor, where = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5]), ARGV[6]
by = ARGV[4]
if where ~= 'install' and where ~= 'verify' then return redis.error_reply('ERR bump: no place ' .. (where or '')) end
-- Above 2^52 (the microseconds of the year 2112) there would soon be no exact number left to mint.
if not floor or floor ~= floor or floor > 4503599627370496 then return redis.error_reply('ERR bump: floor is no token') end
local alone = sub(id, 1, 1) == '@'
local key, j = alone and P .. 'lease:' .. sub(id, 2) or JOB .. id, nil
if alone then -- the same check: a held lease is its own nonce's run
  local l = call('HMGET', key, 'state', 'token', 'resource', 'bumped')
  j = {l[1] == 'held' and 'processing' or l[1], l[2], sub(id, 2), '', l[3], l[4]}
else
  j = call('HMGET', key, 'state', 'token', 'nonce', 'kind', 'opts', 'bumped')
  j[5] = options(j[5]).resource
end
local word, newest = check(key, j, tok, nonce, call('ZSCORE', LEASES, id))
if word ~= 'OK' then
  refuse(where, word, newest, id, j[4], tok, nonce, j[5])
  commit(false)
  return {word, newest}
end
if tonumber(j[2]) > floor then return {'OK', j[2]} end
if token < floor then token = floor end
local before = j[6] and sub(j[6], 1, #nonce + 1) == nonce .. ' ' and j[6] or nonce .. ' '
newest = mint()
call('HSET', key, 'token', newest, 'bumped', before .. j[2] .. ' ')
count('bumped', where)
emit('bumped', id, j[4], newest, nonce, '', where .. ' from ' .. j[2], j[5])
commit(false)
return {'OK', newest}
