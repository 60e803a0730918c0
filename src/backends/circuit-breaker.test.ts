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

test('circuit breaker: probes 50 ms after a failure, then less often, and recovery is noticed within 400 ms', async () => {
  const clock = new VirtualClock();
  const probedAt: number[] = [];
  const probe = async (): Promise<void> => {
    probedAt.push(clock.now());
    if (clock.now() < 2000) throw new Error('down');
  };
  const changes: [boolean, number][] = [];
  const onChange = (isAvailable: boolean): unknown => changes.push([isAvailable, clock.now()]);
  const breaker = new CircuitBreaker(clock, probe, onChange);
  breaker.trip(new Error('down'));
  await clock.advanceAsync(4000);
  expect(probedAt).toEqual([50, 150, 350, 750, 1150, 1550, 1950, 2350]);
  expect(changes).toEqual([
    [false, 0],
    [true, 2350],
  ]);
  breaker.trip(new Error('down'));
  await clock.advanceAsync(50);
  expect([probedAt.at(-1), breaker.isOpen]).toEqual([4050, false]); // starts with 50 ms again
});

test('circuit breaker: where timers end with their request, a later call starts the probe that is overdue', async () => {
  const clock = new VirtualClock();
  const withoutTimers = { now: () => clock.now(), wakeAt: () => () => {} };
  let probes = 0;
  let isDown = true;
  const probe = async (): Promise<void> => {
    probes++;
    if (isDown) throw new Error('down');
  };
  const changes: boolean[] = [];
  const onChange = (isAvailable: boolean): unknown => changes.push(isAvailable);
  const breaker = new CircuitBreaker(withoutTimers, probe, onChange, true);
  breaker.trip(new Error('down'));
  expect([breaker.isOpen, probes]).toEqual([true, 0]);
  clock.advance(1000);
  expect([breaker.isOpen, breaker.isOpen, probes]).toEqual([true, true, 1]); // one probe at a time
  await Promise.resolve();
  isDown = false;
  clock.advance(1000);
  expect([breaker.isOpen, probes]).toEqual([true, 2]);
  await Promise.resolve();
  expect([breaker.isOpen, changes]).toEqual([false, [false, true]]);
});
