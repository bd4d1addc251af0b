#!lua flags=allow-oom
-- checkpoint: store a small value of a run, checked against token, nonce and lease.
-- KEYS: meta events stats leases later dead recent
-- ARGV: id token nonce worker field value event reason
--       field: progress | checkpoint | step:<name> | outside:<name>. event: '' | step | intent | outcome; told if given.
-- RETURNS: OK '' | STALE newest_token | EXPIRED '' | GONE ''; see _check
-- TWICE: the same value is written again; an event is told only where the value changes.
--- @include _begin
--- @include _check
local id, tok, nonce, field, value, event = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6], ARGV[7]
by = ARGV[4]
if not (field == 'progress' or field == 'checkpoint' or string.match(field, '^step:.') or string.match(field, '^outside:.'))
then return redis.error_reply('ERR checkpoint: no field ' .. field) end
local key = JOB .. id
local j = call('HMGET', key, 'state', 'token', 'nonce', 'kind', 'opts')
local word, newest = check(key, j, tok, nonce, call('ZSCORE', LEASES, id))
if word == 'OK' then
  local news = event ~= '' and call('HGET', key, field) ~= value
  call('HSET', key, field, value, 'updated_at', now)
  if news then
    emit(event, id, j[4], j[2], nonce, '', ARGV[8], options(j[5]).resource)
    commit(false)
  end
else
  refuse('checkpoint', word, newest, id, j[4], tok, nonce, options(j[5]).resource)
  commit(false)
end
return {word, newest}
