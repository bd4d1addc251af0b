#!lua flags=allow-oom
-- renew: prolong leases, each checked against token and nonce. Never shortens one, never takes back what was taken.
-- KEYS: meta events stats leases later dead recent
-- ARGV: lease_ms worker, then items: id token nonce; id "@<nonce>" is a stand-alone lease
-- RETURNS: now_ms, then 2 values an item:
--          OK '' | CANCEL reason (renewed; somebody asked to cancel) | STALE newest_token | EXPIRED '' | GONE ''
-- TWICE: the second call prolongs to its own time, as a later heartbeat would.
--- @include _begin
--- @include _check
local deadline, out, write = now + tonumber(ARGV[1]), {int(now)}, {}
by = ARGV[2]
for at = 3, #ARGV, 3 do
  local id, tok, nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local alone = sub(id, 1, 1) == '@'
  local key, until_ms = alone and P .. 'lease:' .. sub(id, 2) or JOB .. id, call('ZSCORE', LEASES, id)
  local j, resource, till = nil, nil, deadline
  if alone then -- the same check: a held lease is its own nonce's run
    local l = call('HMGET', key, 'state', 'token', 'resource', 'ttl_ms')
    j = {l[1] == 'held' and 'processing' or l[1], l[2], sub(id, 2), ''}
    resource, till = l[3], now + (tonumber(l[4]) or 0)
  else
    j = call('HMGET', key, 'state', 'token', 'nonce', 'kind', 'opts', 'cancel')
    resource = options(j[5]).resource
  end
  local word, more = check(key, j, tok, nonce, until_ms)
  if word == 'OK' then
    if resource then call('ZCARD', P .. 'slots:' .. resource) end
    write[#write + 1] = {id, alone and id or nonce, resource, till}
    if j[6] then word, more = 'CANCEL', j[6] end
  else
    refuse('renew', word, more, id, j[4], tok, nonce, resource)
  end
  out[#out + 1] = word
  out[#out + 1] = more
end
for _, w in ipairs(write) do
  call('ZADD', LEASES, 'GT', w[4], w[1])
  if w[3] then call('ZADD', P .. 'slots:' .. w[3], 'GT', w[4], w[2]) end
end
if told > 0 then commit(false) end
return out
