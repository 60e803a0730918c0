/**
 * A fleet of workers shares one API that allows a call every so often, and not one earlier.
 *
 * Eight workers have jobs to do; the API wants its calls 50 ms apart. Nobody coordinates: each calls the
 * same wrapped function and gets its turn, first come first served, urgent jobs before the others. One worker
 * loses patience and gives its place back.
 */

import { DeniedError, limiter, throttle } from 'sluice';

const EVERY_MS = 50;
const token = limiter({
  name: 'api-token',
  limit: { spacing: { every: EVERY_MS } },
  queue: { max: 100, order: 'priority' },
});

const calls = [];
const callApi = throttle(
  async (worker, job) => {
    calls.push({ at: performance.now(), worker, job });
  },
  {
    limiter: token,
    wait: '5s', // queue me fairly, but not for ever
    priority: (_worker, job) => (job === 'urgent' ? 1 : 0),
    signal: (_worker, _job, options) => options?.signal,
  },
);

async function worker(name) {
  for (const job of ['first', 'second', 'third']) await callApi(name, job);
}

const names = ['ada', 'bob', 'cyd', 'dan', 'eve', 'fay', 'gus', 'hal'];
const workers = names.map((name) => worker(name));
const urgent = callApi('boss', 'urgent');
const impatient = callApi('ivy', 'late', { signal: AbortSignal.timeout(120) }).catch((error) =>
  error instanceof DeniedError ? 'refused' : 'gave up waiting',
);
await Promise.all([...workers, urgent]);

const gaps = calls.slice(1).map(({ at }, n) => at - calls[n].at);
console.log(
  `order: ${calls
    .slice(0, 9)
    .map((call) => call.worker)
    .join(', ')}, …`,
);
console.log(`${calls.length} calls, never closer than ${Math.min(...gaps).toFixed(1)} ms`);
console.log(`ivy ${await impatient}; ${token.stats().waiting} left in line`);
// Permits are granted 50 ms apart. On a busy machine one may be used late, and the next one closer to it; none is used early.
const tookMs = calls.at(-1).at - calls[0].at;
if (tookMs < EVERY_MS * (calls.length - 2)) process.exitCode = 1;
