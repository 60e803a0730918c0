import { expect, test } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import type { Clock } from './clock.ts';
import { type Waiter, WaiterSet } from './waiter-set.ts';

type TestWaiter = Waiter<string>;

/** Waiters with their own timers; timers that are set while `drops` is true never fire, as if their request had ended. */
function ownTimers() {
  const clock = new VirtualClock();
  const state = { drops: false, abandoned: [] as TestWaiter[] };
  const dropping: Clock = {
    now: () => clock.now(),
    wakeAt: (at, callback) => (state.drops ? () => {} : clock.wakeAt(at, callback)),
  };
  const set = new WaiterSet<string, TestWaiter>({
    clock: dropping,
    maxWaiters: 10,
    keepAlive: false,
    hasOwnTimers: true,
    expiredResult: () => 'expired',
    onRemove: () => {},
    onAbandon: (waiters) => state.abandoned.push(...waiters),
  });
  const add = (isLost: boolean): TestWaiter => {
    const callbacks = { resolve: () => {}, reject: () => {} };
    const waiter = { deadline: Infinity, signal: undefined, ...callbacks, isWaiting: true };
    state.drops = isLost;
    set.add(waiter);
    set.reschedule();
    state.drops = false;
    return waiter;
  };
  return { clock, set, state, add };
}

test('waiters with own timers: one whose request has ended leaves, without a deadline too', () => {
  const { clock, set, state, add } = ownTimers();
  const [lost, other] = [add(true), add(false)];
  clock.advance(10_000);
  expect([lost.isWaiting, set.size]).toEqual([true, 2]);
  clock.advance(3000);
  expect([lost.isWaiting, other.isWaiting, set.size]).toEqual([false, true, 1]);
  expect(state.abandoned).toEqual([lost]);
});

test('waiters with own timers: none leaves if all timers are late', () => {
  const { clock, set, add } = ownTimers();
  const waiters = [add(false), add(false), add(false)];
  let now = clock.now();
  const late = { now: () => now };
  Object.assign(clock, late); // every timer fires a minute late
  now += 60_000;
  VirtualClock.prototype.advance.call(clock, 2000);
  expect(waiters.map(({ isWaiting }) => isWaiting)).toEqual([true, true, true]);
  expect(set.size).toBe(3);
});
