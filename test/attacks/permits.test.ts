import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import { systemClock } from '../../src/core/clock.ts';
import { permitBytes } from '../../src/daemon/router/permits.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import { createTestDaemon } from '../support/small-daemon.ts';

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

test.each([1, 3])(
  'permits of %i limits: the bytes that bound them are those they take',
  (count) => {
    setFlagsFromString('--expose-gc');
    const collectGarbage = runInNewContext('gc') as () => void;
    const limit = { bucket: { rate: '1/s', burst: 1 }, always: true };
    const names = Array.from({ length: count }, (_, n) => `limit-${n}`);
    const limits = Object.fromEntries(names.map((name) => [name, limit]));
    const { router } = createTestDaemon(systemClock, { limits });
    const hold = (n: number) => router.check({ key: `key-${n}`, cost: 1, wantsPermit: true });
    for (let n = 0; n < 1000; n++) hold(-n);
    collectGarbage();
    const before = process.memoryUsage().heapUsed;
    for (let n = 1; n <= 20_000; n++) hold(n);
    collectGarbage();
    const measured = (process.memoryUsage().heapUsed - before) / 20_000;
    expect(router.permits.size).toBe(21_000);
    expect(measured).toBeLessThan(permitBytes('key-12345', count) * 1.25);
    expect(measured).toBeGreaterThan(permitBytes('key-12345', count) / 2);
  },
);
