import { describe, expect, test } from 'vitest';
import { scheduleDeadline, withDeadline } from './call-deadline.ts';
import type { Clock } from './clock.ts';
import { completesWithin } from './deadline.ts';

/** A clock whose timers fire when the test says so, however late. */
class LateClock implements Clock {
  at = 0;
  timers: { readonly at: number; readonly callback: () => void }[] = [];

  now = (): number => this.at;

  wakeAt = (at: number, callback: () => void): (() => void) => {
    this.timers.push({ at, callback });
    return () => {
      this.timers = [];
    };
  };

  /** Fires the timer, late by so much. Returns when replies that have arrived would have been read. */
  async fire(lateMs: number): Promise<void> {
    const [{ at, callback }] = this.timers.splice(0, 1);
    this.at = at + lateMs;
    callback();
    for (let turn = 0; turn < 3; turn++) await new Promise(setImmediate);
  }
}

function scheduled() {
  const clock = new LateClock();
  const state = { expired: 0 };
  const onExpired = (): void => {
    state.expired++;
  };
  const cancel = scheduleDeadline(clock, 0, 1_000, onExpired, false);
  return { clock, state, cancel };
}

describe('deadline', () => {
  test('expires when its timer is on time, after replies that have arrived were read', async () => {
    const { clock, state } = scheduled();
    const fired = clock.fire(1);
    expect(state.expired).toBe(0);
    await fired;
    expect(state.expired).toBe(1);
  });

  test('is cancelled by a reply that is read after its timer', async () => {
    const { clock, state, cancel } = scheduled();
    const fired = clock.fire(1);
    cancel();
    await fired;
    expect(state.expired).toBe(0);
  });

  test('is extended when its timer is late, because the process was blocked', async () => {
    const { clock, state } = scheduled();
    await clock.fire(500);
    expect([state.expired, clock.timers[0].at]).toEqual([0, 1_700]);
    await clock.fire(0);
    expect(state.expired).toBe(1);
  });

  test('expires after three extensions, however late its timer is', async () => {
    const { clock, state } = scheduled();
    for (let n = 0; n < 3; n++) await clock.fire(500);
    expect(state.expired).toBe(0);
    await clock.fire(500);
    expect(state.expired).toBe(1);
  });
});

test.each([
  ['withDeadline', (clock: Clock, call: Promise<boolean>) => withDeadline(clock, 1_000, call)],
  [
    'completesWithin',
    (clock: Clock, call: Promise<boolean>) => completesWithin(clock, 1_000, call),
  ],
])('%s: a reply that arrived while the process was blocked is in time', async (_name, run) => {
  const clock = new LateClock();
  let onReply = (): void => {};
  const call = new Promise<boolean>((resolve) => {
    onReply = () => resolve(true);
  });
  const result = run(clock, call);
  const fired = clock.fire(500);
  setImmediate(onReply); // as it is read
  await fired;
  expect(await result).toBe(true);
});
