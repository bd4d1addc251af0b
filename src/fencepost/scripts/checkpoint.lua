#!lua flags=allow-oom
-- checkpoint: store progress, a checkpoint or another small value of a run, checked against token, nonce and lease.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id token nonce worker field value; field: progress | checkpoint
-- RETURNS: OK '' | STALE newest_token | EXPIRED '' | GONE ''; see _check
-- TWICE: the same value is written again.
--- @include _begin
--- @include _check
local id, tok, nonce, field, value = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
by = ARGV[4]
if field ~= 'progress' and field ~= 'checkpoint' then return redis.error_reply('ERR checkpoint: no field ' .. field) end
local j = call('HMGET', JOB .. id, 'state', 'token', 'nonce', 'kind')
local word, newest = check(j, tok, nonce, call('ZSCORE', LEASES, id))
if word == 'OK' then
  call('HSET', JOB .. id, field, value, 'updated_at', now)
else
  refuse('checkpoint', word, newest, id, j[4], tok, nonce)
  commit(false)
end
return {word, newest}
