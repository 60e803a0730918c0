/** Decisions, waiting and permits, the same on every runtime. */

import { DeniedError, limiter, throttle } from 'sluice';
import { VirtualClock } from 'sluice/testing';

const api = limiter({ limit: { bucket: { rate: '10/s', burst: 2 } }, clock: new VirtualClock() });
const verdicts = [1, 2, 3].map(() => api.check('alice').verdict);

const spaced = limiter({ limit: { spacing: { every: '50ms' } } });
const start = performance.now();
for (let call = 0; call < 4; call++) await spaced.acquire('job', 1, { wait: '30s' });
const isSpaced = performance.now() - start >= 149;

const inFlight = limiter({ limit: { concurrency: 1 } });
const first = await inFlight.acquire('db');
const second = inFlight.acquire('db', 1, { wait: '30s' });
first.settle();

const once = throttle(() => 'called', { limit: { bucket: { rate: '1/m', burst: 1 } } });
once();
let denied;
try {
  once();
} catch (error) {
  denied = error instanceof DeniedError && error.code;
}

console.log(JSON.stringify({ verdicts, isSpaced, second: (await second).verdict, denied }));
