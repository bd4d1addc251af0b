-- _check: may this run write? Needs _begin.
-- key: of its hash. j: what HMGET read of it, with state, token, nonce first. until_ms: its lease deadline, or false.
-- A run that was bumped is known by each token it had: the answer of the bump may still be on its way to it.
-- Returns OK '' | STALE newest_token | EXPIRED '' (the lease is over, nobody holds the job now) | GONE ''
local function had(key, tok, nonce)
  local before = call('HGET', key, 'bumped')
  if not before or sub(before, 1, #nonce + 1) ~= nonce .. ' ' then return false end
  for one in string.gmatch(sub(before, #nonce + 2), '%S+') do
    if one == tok then return true end
  end
  return false
end
local function check(key, j, tok, nonce, until_ms)
  local state = j[1]
  if state == 'processing' and j[3] == nonce and (j[2] == tok or had(key, tok, nonce)) then
    if in_grace or (until_ms and tonumber(until_ms) > now) then return 'OK', '' end
    return 'EXPIRED', ''
  end
  if not state then return 'GONE', '' end
  local unheld = not j[3] or j[3] == '' -- taken back, or never claimed as far as a rewound server knows
  if unheld and (state == 'queued' or state == 'waiting' or state == 'scheduled') then return 'EXPIRED', '' end
  return 'STALE', j[2] or '0'
end
-- A refusal is counted and told; the job is not touched.
local function refuse(verb, word, newest, id, kind, tok, nonce, resource)
  count('refused', verb)
  id, tok, nonce = string.gsub(id, '%c', ' '), string.gsub(tok, '%c', ' '), string.gsub(nonce, '%c', ' ') -- nobody checked them
  emit('refused_stale', id, kind, tok, nonce, '',
    verb .. ' ' .. string.lower(word) .. (newest ~= '' and ' newest ' .. newest or ''), resource)
end
