#!lua flags=allow-oom
-- renew: prolong leases, each checked against token and nonce. Never shortens one, never takes back what was taken.
-- KEYS: meta events stats leases later dead recent
-- ARGV: lease_ms worker, then items: id token nonce; id "@<nonce>" is a stand-alone lease
-- RETURNS: now_ms, then 2 values an item:
--          OK '' | CANCEL reason (renewed; somebody asked to cancel) | STALE newest_token | EXPIRED '' | GONE ''
-- TWICE: the second call prolongs to its own time, as a later heartbeat would.
--- @include _begin
local deadline, worker, out, write = int(now + tonumber(ARGV[1])), ARGV[2], {int(now)}, {}
for at = 3, #ARGV, 3 do
  local id, tok, nonce = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local alone = sub(id, 1, 1) == '@'
  local j = alone and call('HMGET', P .. 'lease:' .. sub(id, 2), 'state', 'token', 'resource', 'owner', 'ttl_ms')
    or call('HMGET', P .. 'job:' .. id, 'state', 'token', 'resource', 'nonce', 'cancel', 'kind')
  local until_ms = tonumber(call('ZSCORE', LEASES, id) or 0)
  local word, more = 'OK', ''
  if not j[1] then word = 'GONE'
  elseif alone then
    if j[2] ~= tok or j[1] ~= 'held' then word, more = 'STALE', j[2] or '0' end
  elseif j[4] ~= nonce or j[2] ~= tok or j[1] ~= 'processing' then
    word, more = 'STALE', j[2] or '0'
    if j[4] == '' and (j[1] == 'queued' or j[1] == 'waiting' or j[1] == 'scheduled') then word, more = 'EXPIRED', '' end
  elseif j[5] then word, more = 'CANCEL', j[5]
  end
  if (word == 'OK' or word == 'CANCEL') and not in_grace and until_ms <= now then word, more = 'EXPIRED', '' end
  if word == 'OK' or word == 'CANCEL' then
    local till = alone and int(now + tonumber(j[5])) or deadline
    write[#write + 1] = {id, alone and id or nonce, j[3], till}
    if j[3] then call('ZCARD', P .. 'slots:' .. j[3]) end
  else
    count('refused:renew')
    emit('refused_stale', id, not alone and j[6] or '', tok, nonce, '', worker,
      'renew ' .. string.lower(word) .. (more ~= '' and ' newest ' .. more or ''), j[3])
  end
  out[#out + 1], out[#out + 2] = word, more
end
for _, w in ipairs(write) do
  call('ZADD', LEASES, 'GT', w[4], w[1])
  if w[3] then call('ZADD', P .. 'slots:' .. w[3], 'GT', w[4], w[2]) end
end
if #lines > 0 then commit(false) end
return out
