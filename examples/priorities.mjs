/** Two levels in one limit: prefetch calls use what user calls leave, and are refused first. */

import assert from 'node:assert';
import { limiter } from 'sluice';

const server = limiter({ limit: { concurrency: { limit: 10, priorities: ['user', 'prefetch'] } } });
const admit = (level, calls) =>
  Array.from({ length: calls }, () => server.tryAcquire('server', 1, { level })).filter(
    ({ verdict }) => verdict === 'allow',
  );

const prefetched = admit('prefetch', 20);
console.log(`user is quiet: prefetch has ${prefetched.length} of 10 slots`);
assert.equal(prefetched.length, 10);

console.log(
  `user begins: ${admit('user', 4).length} of 4 calls are admitted, all slots are in use`,
);
for (const permit of prefetched.splice(0, 6)) permit.settle();
const [refilled, served] = [admit('prefetch', 6), admit('user', 4)];
console.log(`6 calls end: prefetch gets ${refilled.length} slots, user ${served.length} of 4`);
assert.equal(served.length, 4);

console.log('in flight:', server.inspect('server').priorities);
for (const permit of [...prefetched, ...refilled, ...served]) permit.settle();
