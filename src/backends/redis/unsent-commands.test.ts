import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/index.ts';
import type { CommandText } from './batcher.ts';
import { UnsentCommands } from './unsent-commands.ts';

describe('unsent commands', () => {
  function stage() {
    const clock = new VirtualClock();
    const sent: string[] = [];
    const state = { isAway: true };
    const send = async (_key: string, command: CommandText) => {
      sent.push(`${clock.now()} ${command}`);
      if (state.isAway) throw new Error('away');
      return { value: 0, at: clock.now() };
    };
    return { clock, sent, state, unsent: new UnsentCommands(send, clock) };
  }

  test('one that fails is sent again once a second, until it is of no use', async () => {
    const { clock, sent, unsent } = stage();
    await unsent.send('key', 's1', 2500);
    await clock.advanceAsync(10_000);
    expect(sent).toEqual(['0 s1', '1000 s1', '2000 s1']);
    await unsent.stop();
  });

  test('one that fails is sent at once when Redis is available, and then no more', async () => {
    const { clock, sent, state, unsent } = stage();
    await unsent.send('key', 's1', 9000);
    unsent.keep('key', 's2', 9000); // failed elsewhere
    await clock.advanceAsync(300);
    state.isAway = false;
    unsent.resend();
    await clock.advanceAsync(10_000);
    expect(sent).toEqual(['0 s1', '300 s1', '300 s2']);
    await unsent.stop();
  });

  test('beyond the bound the oldest is dropped', async () => {
    const { sent, state, unsent } = stage();
    for (let n = 0; n < 10_001; n++) unsent.keep('key', `s${n}`, 9000);
    state.isAway = false;
    unsent.resend();
    await unsent.stop();
    expect([sent.length, sent[0], sent.at(-1)]).toEqual([10_000, '0 s1', '0 s10000']);
  });

  test('after stop nothing is kept and no timer runs', async () => {
    const { clock, sent, unsent } = stage();
    await unsent.send('key', 's1', 9000);
    await unsent.stop();
    await unsent.send('key', 's2', 9000);
    await clock.advanceAsync(5000);
    expect(sent).toEqual(['0 s1', '0 s2']);
  });
});
