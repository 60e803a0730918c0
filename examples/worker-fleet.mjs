/**
 * Workers that share an API with a minimum interval between calls, in a queue with priorities.
 *
 * Eight workers call the same throttled function; the API requires 50 ms between calls. The queue is FIFO, with urgent
 * jobs first. One worker times out and leaves the queue.
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
    wait: '5s', // longest wait in the queue
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
  error instanceof DeniedError ? 'was refused' : 'timed out in the queue',
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
console.log(`ivy ${await impatient}; ${token.stats().waiting} waiting`);
// Permits are granted 50 ms apart. Under load one may be used late, and the next one sooner after it; none is used early.
const tookMs = calls.at(-1).at - calls[0].at;
if (tookMs < EVERY_MS * (calls.length - 2)) process.exitCode = 1;
