/** A client holds as many permits as it can and settles none of them. */

import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { limiter } from '../../src/limiter/limiter.ts';

test('permits that expire together: a turn of the event loop expires a few hundred', async () => {
  const api = limiter({ limit: { bucket: { rate: 1, burst: 1 } }, permitTimeout: '20ms' });
  const permits = Array.from({ length: 5000 }, (_, n) => api.tryAcquire(`key ${n}`));
  let most = 0;
  for (let expired = 0; expired < permits.length; ) {
    await setImmediate();
    const { expiredPermits } = api.stats();
    most = Math.max(most, expiredPermits - expired);
    expired = expiredPermits;
  }
  expect(most).toBeLessThanOrEqual(1000);
  const [first] = permits;
  expect(first.verdict === 'allow' && first.signal.reason).toMatchObject({
    name: 'UnavailableError',
    message: expect.stringContaining('has ended'),
  });
});
