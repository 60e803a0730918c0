/** Two levels in one limit: prefetch calls use what user calls leave, and are refused first. */

import assert from 'node:assert';
import { limiter } from 'sluice';

const server = limiter({ limit: { concurrency: { limit: 10, priorities: ['user', 'prefetch'] } } });
const call = (level) => server.tryAcquire('server', 1, { level });
const isAllowed = ({ verdict }) => verdict === 'allow';

const prefetched = Array.from({ length: 20 }, () => call('prefetch')).filter(isAllowed);
console.log(`user is quiet: prefetch has ${prefetched.length} of 10 slots`);
assert.equal(prefetched.length, 10);

console.log(`user begins: ${call('user').verdict}, every slot is in use`);
for (let n = 1; n <= 3; n++) {
  prefetched.pop().settle();
  const [low, high] = [call('prefetch'), call('user')];
  console.log(`a prefetch call ends; the next one: ${low.verdict}; a user call: ${high.verdict}`);
  assert.deepEqual([low, high].map(isAllowed), [false, true]);
}

console.log('in flight:', server.inspect('server').priorities);
