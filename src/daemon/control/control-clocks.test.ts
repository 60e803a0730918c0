import { afterEach, describe, expect, test } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';
import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { VirtualClock } from '../../testing/index.ts';
import { operatorKeyOf } from './control-auth.ts';
import { ControlSharing } from './control-sharing.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const TOKEN = 'the-token-of-the-operator';
const ONE = `admin: { token: ${TOKEN} }
peers: { udp: '127.0.0.1:7613' }
limits: { a: { bucket: { rate: 1/h, burst: 20 } } }`;
const rules = { operator: () => operatorKeyOf(TOKEN), sharedLimits: () => new Set(['a']) };
const NO_CHANNEL: FleetChannel = { onText: undefined, peers: () => [], send() {} };
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const NOW = 1_700_000_000_000;

/** Daemons by how far their clocks are ahead. */
async function fleet(...aheadMs: readonly number[]) {
  const channels: FleetChannel[] = [];
  /** While clocks are advanced one after the other, no message is sent. */
  let isAdvancing = false;
  const join = async (ms: number) => {
    const id = channels.length;
    const daemon = await start(ONE, new VirtualClock(NOW + ms), `${id}`, undefined, NO_CHANNEL);
    const channel: FleetChannel = {
      onText: undefined,
      peers: () => [...channels.keys()].filter((other) => other !== id),
      send: (text, to) => {
        if (isAdvancing) return;
        for (const other of channel.peers())
          if (to === undefined || to === other) channels[other].onText?.(text, id);
      },
    };
    channels.push(channel);
    const sharing = new ControlSharing(daemon.clock, daemon.controls, [channel], rules);
    return {
      ...daemon,
      join: () => sharing.join(),
      share: () => sharing.send(daemon.controls.records),
    };
  };
  const daemons: Awaited<ReturnType<typeof join>>[] = [];
  for (const ms of aheadMs) daemons.push(await join(ms));
  /** All daemons send what they have, as they do in turn. */
  const pass = (ms: number): void => {
    isAdvancing = true;
    for (const { clock } of daemons) clock.advance(ms);
    isAdvancing = false;
    for (const { share } of daemons) share();
  };
  const allowed = (): boolean[] => daemons.map(({ isAllowed }) => isAllowed('eve'));
  return { daemons, join, pass, allowed };
}

describe('controls, clocks an hour apart', () => {
  test.each([
    ['ahead', 0],
    ['behind', 1],
  ])('a ban of the daemon that is %s lasts its duration on all', async (_name, n) => {
    const { daemons, pass, allowed } = await fleet(HOUR, 0, -HOUR);
    daemons[n].controls.ban({ key: 'eve', for: '30m' });
    pass(0);
    expect(allowed()).toEqual([false, false, false]);
    pass(30 * MINUTE - 1000);
    expect(allowed()).toEqual([false, false, false]);
    pass(1001);
    expect(allowed()).toEqual([true, true, true]);
  });

  test('a daemon that joins gets the ban with the time that is left', async () => {
    const { daemons, join, pass } = await fleet(0);
    daemons[0].controls.ban({ key: 'eve', for: '30m' });
    pass(10 * MINUTE);
    const joined = await join(HOUR + 10 * MINUTE);
    await joined.join();
    joined.clock.advance(20 * MINUTE - 1000);
    expect(joined.isAllowed('eve')).toBe(false);
    joined.clock.advance(1001);
    expect(joined.isAllowed('eve')).toBe(true);
  });

  test.each([
    ['ahead', 'behind', 0, 1],
    ['behind', 'ahead', 1, 0],
  ])(
    'ban by the one %s: an unban by the one %s wins, and so does the ban after it',
    async (_one, _other, banning, unbanning) => {
      const { daemons, pass, allowed } = await fleet(HOUR, 0);
      daemons[banning].controls.ban({ key: 'eve', for: '3h' });
      pass(1000);
      expect(daemons[unbanning].controls.unban({ key: 'eve' })).toBe(true);
      pass(1000);
      expect(allowed()).toEqual([true, true]);
      daemons[banning].controls.ban({ key: 'eve', for: '10m' });
      pass(1000);
      expect(allowed()).toEqual([false, false]);
      daemons[unbanning].controls.ban({ key: 'eve', for: '5m' });
      pass(6 * MINUTE);
      expect(allowed()).toEqual([true, true]);
      pass(4 * HOUR);
      expect(daemons.map(({ controls }) => controls.records)).toEqual([[], []]);
    },
  );

  test.each([0, 1])('a reset by daemon %i resets the key on both, and again', async (n) => {
    const { daemons, pass } = await fleet(HOUR, 0);
    for (const by of [n, 1 - n]) {
      for (const { isAllowed } of daemons) while (isAllowed('zoe'));
      pass(1000);
      await daemons[by].controls.reset({ key: 'zoe' });
      pass(1000);
      expect(daemons.map(({ isAllowed }) => isAllowed('zoe'))).toEqual([true, true]);
    }
  });

  test('a clock that is years ahead makes no ban longer than an operator can set', async () => {
    const { daemons, pass } = await fleet(50 * 366 * 24 * HOUR, 0);
    daemons[0].controls.ban({ key: 'eve', for: '366d' });
    pass(0);
    expect(daemons[1].isAllowed('eve')).toBe(false);
    const [record] = daemons[1].controls.list();
    expect(record.until - daemons[1].clock.now()).toBe(366 * 24 * HOUR);
  });

  test('a message without the time of its sender is taken as it is', async () => {
    const { daemons, allowed } = await fleet(0, 0);
    const until = NOW + HOUR;
    daemons[0].controls.merge([{ kind: 'ban', key: 'eve', until, setAt: NOW }]);
    expect(allowed()).toEqual([false, true]);
    expect(daemons[0].controls.list()[0].until).toBe(until);
  });
});
