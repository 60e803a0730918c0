import { expect, test } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { CircuitBreaker, RejectionPacer } from './circuit-breaker.ts';

test('circuit breaker: a caller that retries immediately does not starve the event loop', async () => {
  const refuser = new RejectionPacer();
  let isOver = false;
  setTimeout(() => {
    isOver = true;
  }, 1);
  let refused = 0;
  while (!isOver && refused < 1_000_000) {
    await refuser.reject(new Error('no')).catch(() => refused++);
  }
  expect(isOver).toBe(true);
});

test('circuit breaker: a probe that succeeds after stop() reports no change', async () => {
  const clock = new VirtualClock();
  let succeed = (): void => {};
  const probe = () =>
    new Promise<void>((resolve) => {
      succeed = resolve;
    });
  const changes: boolean[] = [];
  const breaker = new CircuitBreaker(clock, probe, (isAvailable) => changes.push(isAvailable));
  breaker.trip(new Error('down'));
  clock.advance(50);
  breaker.stop();
  succeed();
  await Promise.resolve();
  expect([changes, breaker.isOpen]).toEqual([[false], true]);
});
