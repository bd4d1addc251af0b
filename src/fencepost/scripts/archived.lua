#!lua flags=allow-oom
-- archived: the ledger has copied every event up to seq; what lies behind it may be trimmed when it is old.
-- KEYS: meta events stats leases later dead recent
-- ARGV: seq lost event_cap
--       lost: events that were gone before they could be copied, found since the last call. event_cap: how many
--       events are kept at most for a ledger that is away.
-- RETURNS: OK seq | AHEAD seq (the partition has not come so far: it was rewound; nothing was changed)
-- TWICE: the second call changes nothing; lost is counted only with a new seq.
--- @include _begin
local done, lost = tonumber(ARGV[1]), tonumber(ARGV[2])
if done > seq then return {'AHEAD', int(seq)} end
local known = call('HGET', META, 'archived')
if known ~= ARGV[1] then
  if lost > 0 then count('events_lost', 'ledger', lost) end
  call('HSET', META, 'archived', ARGV[1], 'event_cap', ARGV[3])
  commit(false)
end
return {'OK', int(seq)}
