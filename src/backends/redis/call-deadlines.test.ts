import { describe, expect, test } from 'vitest';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
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

/** Calls with a deadline of 100 ms, and their results. */
function watched(isPatient: boolean) {
  const clock = new VirtualClock(1000);
  const process = new StallableClock(clock);
  const calls = new CallDeadlines(process, 100, false, isPatient);
  const settled = async (): Promise<void> => new Promise((later) => setImmediate(later));
  const pass = async (ms: number): Promise<void> => {
    clock.advance(ms);
    await settled();
  };
  const stall = async (ms: number): Promise<void> => {
    process.stall();
    clock.advance(ms);
    process.resume();
    process.fireOverdue();
    await settled();
  };
  const send = (slot = 0) => {
    const call = { state: 'waits', reply: async (): Promise<void> => {} };
    const reply = new Promise<void>((resolve) => {
      call.reply = () => {
        resolve();
        return settled();
      };
    });
    calls.run(reply, slot).then(
      () => (call.state = 'replied'),
      () => (call.state = 'expired'),
    );
    return call;
  };
  return { pass, stall, send };
}

describe('CallDeadlines, patient', () => {
  test('a first reply after the deadline is in time', async () => {
    const { pass, send } = watched(true);
    const call = send();
    await pass(170);
    await call.reply();
    expect(call.state).toBe('replied');
  });

  test('a server that stops replying: each call expires within two deadlines', async () => {
    const { pass, send } = watched(true);
    const answered = send();
    await pass(1);
    await answered.reply();
    const first = send();
    await pass(90);
    const second = send();
    await pass(89);
    expect([first.state, second.state]).toEqual(['waits', 'waits']);
    await pass(1);
    expect([first.state, second.state]).toEqual(['expired', 'waits']);
    await pass(90);
    expect(second.state).toBe('expired');
  });

  test('a call waits while others are answered, for ten deadlines at most', async () => {
    const { pass, send } = watched(true);
    const lost = send();
    for (let n = 0; n < 10; n++) {
      expect(lost.state).toBe('waits');
      const other = send();
      await pass(99);
      await other.reply();
      await pass(1);
    }
    expect(lost.state).toBe('expired');
  });

  test('replies of another slot do not extend the deadline', async () => {
    const { pass, send } = watched(true);
    const lost = send(1);
    for (let n = 0; n < 2; n++) {
      const other = send(2);
      await pass(90);
      await other.reply();
    }
    expect(lost.state).toBe('expired');
  });

  test('a server that is late twice in a row is slow: calls expire by their deadline until a reply is in time', async () => {
    const { pass, send } = watched(true);
    const replyAfter = async (ms: number): Promise<string> => {
      const call = send();
      await pass(ms);
      await call.reply();
      await pass(1);
      return call.state;
    };
    const states = [];
    for (const ms of [120, 120, 120, 120, 20, 120]) states.push(await replyAfter(ms));
    expect(states).toEqual(['replied', 'replied', 'expired', 'expired', 'replied', 'replied']);
  });

  test('late replies to calls that were sent together are one stall, not a slow server', async () => {
    const { pass, send } = watched(true);
    const together = [send(), send(), send()];
    await pass(120);
    for (const { reply } of together) await reply();
    await pass(1);
    const next = send();
    await pass(120);
    expect(next.state).toBe('waits');
  });
});

describe('CallDeadlines, process stalled', () => {
  test.each([true, false])('a stall does not count (patient: %s)', async (isPatient) => {
    const { pass, stall, send } = watched(isPatient);
    const call = send();
    await pass(10);
    await stall(150);
    await pass(20);
    expect(call.state).toBe('waits');
    await call.reply();
    expect(call.state).toBe('replied');
  });

  test('without patience a call expires after two deadlines, however often its process stalls', async () => {
    const { stall, send } = watched(false);
    const call = send();
    for (let n = 0; n < 3; n++) await stall(60);
    expect(call.state).toBe('waits');
    await stall(60);
    expect(call.state).toBe('expired');
  });

  test('a patient call expires after ten deadlines, however often its process stalls', async () => {
    const { stall, send } = watched(true);
    const call = send();
    for (let n = 0; n < 16; n++) await stall(60);
    expect(call.state).toBe('waits');
    await stall(60);
    expect(call.state).toBe('expired');
  });
});
