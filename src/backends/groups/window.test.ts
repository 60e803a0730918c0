/** Tests a sliding window over groups that lend to each other, with an exact log of all calls as oracle. */

import { describe, expect, test } from 'vitest';
import { type LoggedCall, mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import { seededRandom } from '../../core/random.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { type GroupsMembership, groups } from './options.ts';
import type { GroupTransport } from './transport.ts';

const LIMIT = 90;
const STEP_MS = 5;

/** Three groups whose demand changes at random; returns all calls, and those of the first group. */
async function run(seed: number, perMs: number, seconds: number, isOneBusy: boolean) {
  const random = seededRandom(seed);
  const clock = new VirtualClock(1_000_000);
  const members = new Map<string, GroupsMembership>();
  const sleep = (ms: number): Promise<void> =>
    new Promise((wake) => {
      clock.wakeAt(clock.now() + ms, wake);
    });
  const transport: GroupTransport = {
    async borrow(to, requests) {
      await sleep(50 * random());
      const grants = (await members.get(to)?.lend(requests)) ?? [];
      await sleep(random() < 0.1 ? 250 : 50 * random()); // some replies are late
      return grants;
    },
  };
  const names = ['a', 'b', 'c'];
  const apis = names.map((self) => {
    const shares = { a: {}, b: {}, c: {} };
    const group = groups({ clock, transport, self, groups: shares, deadline: 200 });
    members.set(self, group);
    const limit = { window: { limit: LIMIT, per: perMs } };
    return limiter({ name: 'api', limit, backend: group, clock });
  });
  const log: LoggedCall[] = [];
  const served = [0, 0, 0];
  let demand = [1, 0, 0];
  for (let n = 0; n < (seconds * 1000) / STEP_MS; n++) {
    if (!isOneBusy && random() < STEP_MS / perMs)
      demand = demand.map(() => (random() < 0.5 ? 0 : random()));
    for (const [g, api] of apis.entries()) {
      if (random() >= demand[g] || api.check('key').verdict !== 'allow') continue;
      log.push({ at: clock.now(), units: 1 });
      served[g]++;
    }
    await clock.advanceAsync(STEP_MS);
  }
  const lent = [...members.values()].reduce((sum, member) => sum + member.view().lent, 0);
  for (const member of members.values()) await member.close();
  return { log, served, lent };
}

describe('groups, sliding window', () => {
  test.each([
    [1, 1600],
    [2, 1600],
    [3, 6000],
    [4, 400],
  ])(
    'window over groups: no period holds more than the limit (seed %i, per %i ms)',
    async (seed, perMs) => {
      const { log, lent } = await run(seed, perMs, 20, false);
      expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(LIMIT);
      expect(lent).toBeGreaterThan(20); // otherwise the property proves little
    },
  );

  test('window over groups: a busy group borrows what idle ones have above their reserve', async () => {
    const perMs = 6000;
    const { log, served } = await run(5, perMs, 60, true);
    expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(LIMIT);
    expect(served[0] / (60_000 / perMs)).toBeGreaterThan(1.5 * (LIMIT / 3));
  });

  test('window over groups: a limit with less than one call for a group is refused', () => {
    const group = groups({
      self: 'a',
      groups: { a: {}, b: {} },
      transport: { borrow: async () => [] },
    });
    const make = (limit: number) =>
      limiter({ name: 'api', limit: { window: { limit, per: '1m' } }, backend: group });
    expect(() => make(1)).toThrow('`limit.window.limit` to be at least 2');
    expect(make(3).peek('x')).toMatchObject({ verdict: 'allow', remaining: 0 });
  });
});
