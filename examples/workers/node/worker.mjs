// A Fencepost worker in JavaScript: Node.js 20 or newer, no dependencies.
//
//   FENCEPOST_API=http://127.0.0.1:8000 FENCEPOST_TOKEN=fp_… node worker.mjs
//
// It claims jobs under a lease, renews the lease every third of it, and reports how each run ended with the fencing
// token and the nonce of its claim. A run whose lease was lost is told by its signal, and nothing it reports counts.

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';

const API = process.env.FENCEPOST_API ?? 'http://127.0.0.1:8000';
const TOKEN = process.env.FENCEPOST_TOKEN ?? '';
const QUEUES = (process.env.FENCEPOST_QUEUES ?? 'node').split(',');
const LEASE_S = Number(process.env.FENCEPOST_LEASE_S ?? 30);
const SLOTS = Number(process.env.FENCEPOST_SLOTS ?? 4);
const WORKER = process.env.FENCEPOST_WORKER ?? `${hostname().replace(/[^A-Za-z0-9.-]/g, '-').slice(0, 40)}-${process.pid}`;

/** What this worker can do: a function per kind. `run.signal` is aborted when the run must stop. */
const handlers = {
  async thumbnail({ url, width = 100 }, run) {
    await run.checkpoint({ fetched: url });
    run.signal.throwIfAborted();
    return { url, width, made_by: WORKER };
  },
  /** Does nothing for a while, as a slow program would. `seconds` of it. */
  async dawdle({ seconds = 1 }, run) {
    await sleep(seconds * 1000, undefined, { signal: run.signal });
    return 'rested';
  },
  /** Does not look at its signal. What it brings too late is refused all the same: that is what the fence is for. */
  async deaf({ seconds = 1 }) {
    await sleep(seconds * 1000);
    return 'rested';
  },
  async fail({ message = 'broken', permanent = false }) {
    throw Object.assign(new TypeError(message), { permanent });
  },
};

/** The service said no. `problem` is its problem document (RFC 9457). */
class Refused extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title);
    this.problem = problem;
  }
  get lost() {
    return [404, 409].includes(this.problem.status); // the run is not ours (any more)
  }
}

const log = (event, fields = {}) => console.log(JSON.stringify({ event, worker: WORKER, ...fields }));

async function call(path, body, { signal, timeout = 30_000 } = {}) {
  const headers = { 'Content-Type': 'application/json', ...(TOKEN && { Authorization: `Bearer ${TOKEN}` }) };
  const patience = AbortSignal.timeout(timeout); // a service that hangs must not hang us
  const until = signal ? AbortSignal.any([signal, patience]) : patience;
  const answer = await fetch(API + path, { method: 'POST', headers, body: JSON.stringify(body), signal: until });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let problem = { status: answer.status, title: text.slice(0, 200) };
  try {
    problem = JSON.parse(text);
  } catch {} // a proxy in between answers in its own way
  throw new Refused({ ...problem, status: answer.status, retryAfter: Number(answer.headers.get('Retry-After')) || 1 });
}

/** Every call may be sent twice, so what got no answer is sent again, as long as `goOn` says so. */
async function insist(path, body, goOn = () => true, signal = undefined) {
  for (let wait = 100; ; wait = Math.min(wait * 2, 5_000)) {
    try {
      return await call(path, body, { signal });
    } catch (error) {
      if (error instanceof Refused && ![429, 502, 503, 504].includes(error.problem.status)) throw error;
      if (!goOn()) throw error;
      log('again', { path, url: API, why: error.problem ?? String(error.cause ?? error), in_ms: wait });
      await sleep(error instanceof Refused ? Math.max(wait, error.problem.retryAfter * 1000) : wait);
    }
  }
}

class Run {
  constructor(job, claimedAt) {
    this.job = job;
    this.key = { job_id: job.job_id, token: job.token, nonce: job.nonce };
    this.prolong(claimedAt);
    this.stop = new AbortController();
    this.signal = this.stop.signal;
  }
  /** The lease counts from before the call that gave it was sent, less a tenth for clocks that drift. */
  prolong(sentAt) {
    this.until = sentAt + LEASE_S * 900;
  }
  get ours() {
    return performance.now() < this.until;
  }
  checkpoint(value) {
    return insist('/v1/checkpoint', { ...this.key, worker: WORKER, value }, () => this.ours);
  }
}

/** Why a run was stopped, where it is not ours any more. After "cancel" and "shutdown" it still is. */
const LOST = new Set(['stale', 'expired', 'gone', 'deadline']);
const runs = new Map(); // nonce -> Run
const asking = new AbortController(); // the claim that waits for jobs
let stopping = false;
let freed = () => {};

async function work(run) {
  const { job } = run;
  log('begin', { ...run.key, kind: job.kind, attempt: job.attempt });
  try {
    const handler = handlers[job.kind];
    let end;
    try {
      run.signal.throwIfAborted();
      const result = await handler(job.args ?? {}, run);
      end = ['/v1/finish', { ...run.key, worker: WORKER, result: result ?? null }];
    } catch (error) {
      if (LOST.has(run.signal.reason)) {
        return log('lost', { ...run.key, why: run.signal.reason }); // there is nothing to report: the job goes on elsewhere
      }
      if (run.signal.reason === 'shutdown') {
        end = ['/v1/release', { ...run.key, worker: WORKER, reason: 'shutdown' }];
      } else {
        const { name, message, permanent = false } = error;
        end = ['/v1/retry', { ...run.key, worker: WORKER, permanent, error: { class: name, message } }];
      }
    }
    const answer = await insist(...end); // not given up: the fence decides whether it still counts
    log('ended', { ...run.key, ...answer });
  } catch (error) {
    log(error.lost ? 'refused' : 'not_reported', { ...run.key, problem: error.problem ?? String(error) });
  } finally {
    runs.delete(job.nonce);
    freed();
  }
}

async function heartbeat() {
  for (;;) {
    await sleep((LEASE_S * 1000) / 3, undefined, { ref: false });
    const mine = [...runs.values()].filter((run) => !LOST.has(run.signal.reason));
    if (!mine.length) continue;
    const sentAt = performance.now();
    try {
      const body = { worker: WORKER, lease_s: LEASE_S, runs: mine.map((run) => run.key) };
      const answer = await call('/v1/renew', body, { timeout: Math.round((LEASE_S * 1000) / 3) });
      answer.runs.forEach(({ outcome, ...why }, i) => {
        if (outcome === 'ok' || outcome === 'cancel') mine[i].prolong(sentAt);
        if (outcome !== 'ok') {
          log('stop', { ...mine[i].key, outcome, ...why });
          mine[i].stop.abort(outcome);
        }
      });
    } catch (error) {
      log('renew_failed', { problem: error.problem ?? String(error) });
    }
    for (const run of runs.values()) if (!run.ours) run.stop.abort('deadline');
  }
}

async function claim() {
  while (!stopping) {
    const wanted = SLOTS - runs.size;
    if (wanted === 0) {
      await new Promise((resolve) => (freed = resolve));
      continue;
    }
    const claimedAt = performance.now();
    const about = { worker: WORKER, queues: QUEUES, kinds: Object.keys(handlers), claim_id: randomUUID() };
    const body = { ...about, wanted, lease_s: LEASE_S, wait_s: Math.min(10, LEASE_S / 3) }; // leases count from before it
    let jobs;
    try {
      ({ jobs } = await insist('/v1/claims', body, () => !stopping, asking.signal));
    } catch (error) {
      if (stopping) return; // the service sees that we hung up, and hands back what it had claimed for us
      throw error;
    }
    for (const job of jobs) {
      const run = new Run(job, claimedAt);
      runs.set(job.nonce, run);
      if (stopping) run.stop.abort('shutdown'); // it came at the last moment
      work(run);
    }
  }
}

async function stop() {
  if (stopping) process.exit(1); // a second signal means now
  stopping = true;
  log('stopping', { runs: runs.size });
  asking.abort();
  for (const run of runs.values()) run.stop.abort('shutdown');
  for (let waited = 0; runs.size && waited < 10_000; waited += 50) await sleep(50);
  process.exit(0);
}

process.on('SIGTERM', stop);
process.on('SIGINT', stop);
log('serving', { api: API, queues: QUEUES, lease_s: LEASE_S });
heartbeat();
await claim().catch((error) => {
  log('claim_refused', { problem: error.problem ?? String(error) });
  process.exitCode = 1;
});
