import { expect, test, vi } from 'vitest';
import { Heap } from '../core/heap.ts';
import { VirtualClock } from './virtual-clock.ts';

test('VirtualClock: cancelled timers are removed before they are due', () => {
  const push = vi.spyOn(Heap.prototype, 'push');
  const clock = new VirtualClock();
  let fired = 0;
  clock.wakeAt(2000, () => fired++);
  const heap = push.mock.contexts[0] as Heap<unknown>;
  push.mockRestore();
  for (let n = 0; n < 10_000; n++) clock.wakeAt(1000, () => fired++)();
  expect(heap.size).toBeLessThan(200);
  clock.advance(2000);
  expect([fired, heap.size]).toEqual([1, 0]);
});

test('VirtualClock: cancelling a timer again, or after it fired, has no effect', () => {
  const clock = new VirtualClock();
  const cancel = clock.wakeAt(1, () => {});
  clock.advance(1);
  for (let n = 0; n < 500; n++) cancel();
  let fired = 0;
  for (let n = 0; n < 3; n++) clock.wakeAt(5, () => fired++);
  clock.advance(5);
  expect(fired).toBe(3);
});
