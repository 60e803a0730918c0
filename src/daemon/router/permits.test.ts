import { expect, test } from 'vitest';
import { limiter } from '../../limiter/limiter.ts';
import type { Permit } from '../../limiter/permit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { PermitRegistry, permitBytes } from './permits.ts';

test('permit registry: removes expired permits as new ones are added', () => {
  const clock = new VirtualClock();
  const api = limiter({ limit: { bucket: { rate: 1e6, burst: 1e6 } }, permitTimeout: '1s', clock });
  const permits = new PermitRegistry(() => 0);
  let most = 0;
  for (let n = 0; n < 100_000; n++) {
    permits.add([api.tryAcquire('a') as Permit], 512);
    clock.advance(1);
    most = Math.max(most, permits.size);
  }
  expect(most).toBeLessThan(3000); // a thousand are held at any time
  expect(permits.settle('100000-0', {})).toBe(true);
  expect(permits.settle('98000-0', {})).toBe(false);
});

test('permit registry: bounds the memory of its permits, whatever the size of their keys', () => {
  for (const [length, limits] of [
    [4096, 1],
    [65_536, 1],
    [10, 100],
  ]) {
    const permits = new PermitRegistry(() => 0);
    const held = { cost: 1, isSettled: false, settle: () => {} };
    const bytes = permitBytes('k'.repeat(length), limits);
    let ids = 0;
    while (ids < 1e6 && permits.add([held], bytes) !== undefined) ids++;
    expect(ids * (length + 500 * limits)).toBeLessThan(2 ** 28);
    expect(ids).toBeGreaterThan(3000);
    expect(permits.refused).toBe(1);
    expect(permits.settle('1-0', {})).toBe(true);
    expect(permits.add([held], bytes)).toBeDefined();
    expect(permits.add([held], bytes)).toBeUndefined();
  }
});
