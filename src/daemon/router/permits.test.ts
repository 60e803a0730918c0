import { expect, test } from 'vitest';
import { limiter } from '../../limiter/limiter.ts';
import type { Permit } from '../../limiter/permit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { PermitRegistry } from './permits.ts';

test('permit registry: removes expired permits as new ones are added', () => {
  const clock = new VirtualClock();
  const api = limiter({ limit: { bucket: { rate: 1e6, burst: 1e6 } }, permitTimeout: '1s', clock });
  const permits = new PermitRegistry(() => 0);
  let most = 0;
  for (let n = 0; n < 100_000; n++) {
    permits.add([api.tryAcquire('a') as Permit]);
    clock.advance(1);
    most = Math.max(most, permits.size);
  }
  expect(most).toBeLessThan(3000); // a thousand are held at any time
  expect(permits.settle('100000-0', {})).toBe(true);
  expect(permits.settle('98000-0', {})).toBe(false);
});
