#!lua flags=allow-oom
-- checkpoint: store progress, a checkpoint or another small value of a run, checked against token, nonce and lease.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id token nonce worker field value; field: progress | checkpoint | step:<name>
-- RETURNS: OK '' | STALE newest_token | EXPIRED '' | GONE ''
-- TWICE: the same value is written again.
--- @include _begin
local id, tok, nonce, worker, field, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local key = P .. 'job:' .. id
local j = call('HMGET', key, 'state', 'token', 'nonce', 'kind', 'attempts', 'resource')
local until_ms = tonumber(call('ZSCORE', LEASES, id) or 0)
local word, newest = 'OK', ''
if not j[1] then word = 'GONE'
elseif j[3] ~= nonce or j[2] ~= tok or j[1] ~= 'processing' then
  word, newest = 'STALE', j[2] or '0'
  if j[3] == '' and (j[1] == 'queued' or j[1] == 'waiting' or j[1] == 'scheduled') then word, newest = 'EXPIRED', '' end
elseif not in_grace and until_ms <= now then word = 'EXPIRED'
end
if word == 'OK' then
  call('HSET', key, field, value, 'updated_at', int(now))
else
  count('refused:checkpoint')
  emit('refused_stale', id, j[4], tok, nonce, '', worker, 'checkpoint ' .. string.lower(word)
    .. (newest ~= '' and ' newest ' .. newest or ''), j[6])
  commit(false)
end
return {word, newest}
