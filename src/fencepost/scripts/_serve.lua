-- _serve: the claiming half of claim and finish: replay, sweep, claim, remember the answer.
-- ARGV[1..7] = worker lane nonce n lease_ms upkeep queues, then queue and most for each queue.
-- KEYS[8..9] = worker workers, then one ready key a queue.
local WORKER, WORKERS = KEYS[8], KEYS[9]
local worker, lane, nonce, n, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local upkeep, ready, at = ARGV[6] ~= '', {}, 8
for i = 1, tonumber(ARGV[7]) do
  ready[i] = {ARGV[at], tonumber(ARGV[at + 1])}
  at = at + 2
end
local last = call('HGET', WORKER, lane)
call('ZCARD', WORKERS)
for i = 10, #KEYS do call('ZCARD', KEYS[i]) end

local function replay() -- the same call again: hand out the same runs, as far as they still are ours
  local out, i = {}, 0
  for id in string.gmatch(sub(last, #nonce + 2), '%S+') do
    i = i + 1
    local j = call('HMGET', P .. 'job:' .. id, 'nonce', 'token', 'state', 'queue', unpack(FIELDS, 2))
    if j[1] == nonce .. '.' .. i and j[3] == 'processing' then
      local f = {j[3], unpack(j, 5, 4 + #FIELDS - 1)}
      take(out, id, j[4], f, j[2], f[4])
    else
      take(out, '', '', {}, '', '0') -- keeps the numbering of the nonces
    end
  end
  return out
end
local function serve()
  if n > 0 and last and sub(last, 1, #nonce + 1) == nonce .. ' ' then return replay(), '' end
  sweep(n > 0 and 100 or 200)
  local out, taken = {}, 0
  if n > 0 then out, taken = claim(n, nonce, worker, lease_ms, ready, n + 200) end
  if taken > 0 then
    local ids = {nonce}
    for i = 1, #out, 11 do ids[#ids + 1] = out[i] end
    call('HSET', WORKER, lane, table.concat(ids, ' '))
    if upkeep or not last then call('PEXPIRE', WORKER, lease_ms * 10 + 60000) end
  end
  if upkeep then
    call('HSET', WORKER, 'about', ARGV[6], 'seen_at', int(now))
    call('PEXPIRE', WORKER, lease_ms * 10 + 60000)
    call('ZADD', WORKERS, int(now), worker)
    call('ZREMRANGEBYSCORE', WORKERS, '-inf', int(now - 3600000))
    call('ZREMRANGEBYRANK', WORKERS, 0, -1001)
    trim_ended()
    if lease_ms ~= lease_seen or not m[5] then call('HSET', META, 'lease_ms', int(lease_ms)) end
  end
  local due = ''
  if taken < n then
    local head = call('ZRANGE', LATER, 0, 0, 'WITHSCORES')
    if head[2] then due = int(math.max(0, tonumber(head[2]) - now)) end
  end
  commit(true)
  wake()
  return out, due
end
