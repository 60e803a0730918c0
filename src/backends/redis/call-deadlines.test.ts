import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/index.ts';
import { CallDeadlines } from './call-deadlines.ts';

describe.each([false, true])('CallDeadlines, a timer for each call: %s', (hasOwnTimers) => {
  test('rejects a call without a reply by the deadline, and passes other results through', async () => {
    const clock = new VirtualClock();
    const calls = new CallDeadlines(clock, 100, hasOwnTimers);
    const hanging = calls.run(new Promise(() => {}));
    const answered = calls.run(Promise.resolve('reply'));
    const failed = calls.run(Promise.reject(new Error('connection lost')));
    expect(await answered).toBe('reply');
    await expect(failed).rejects.toThrow('connection lost');
    clock.advance(100);
    await expect(hanging).rejects.toThrow('no reply within 100 ms');
  });

  test('a reply that is read in the same turn as the timeout is in time', async () => {
    const clock = new VirtualClock();
    const calls = new CallDeadlines(clock, 100, hasOwnTimers);
    let reply = (_: string): void => {};
    const call = calls.run(new Promise<string>((resolve) => (reply = resolve)));
    clock.advance(100);
    reply('reply');
    expect(await call).toBe('reply');
  });
});
