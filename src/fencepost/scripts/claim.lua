#!lua flags=allow-oom
-- claim: take back lapsed runs, promote due jobs, then give up to n ready jobs to one worker, each under a new
--        fencing token, a nonce and a lease. n = 0 only sweeps.
-- KEYS: meta events stats leases later dead recent worker workers ready...
-- ARGV: worker lane nonce n lease_ms upkeep queues (queue most)...
--       nonce: of this call; run i gets the nonce "<nonce>.<i>". upkeep: text about the worker, or ''.
-- RETURNS: OK now_ms next_due_in_ms jobs queues extras
--          jobs: flat, 5 values each: id kind payload token attempt
--          queues: flat: queue count, for the jobs in their order
--          extras: flat, for jobs that are not plain first runs: index resource version crashes checkpoint
-- TWICE: the same worker, lane and nonce get the same runs again; nothing is claimed anew.
--- @include _begin
--- @include _end
--- @include _sweep
--- @include _claim
--- @include _serve
return {'OK', int(now), serve()}
