/** Fleets on virtual time that something happens to, and how they stand afterwards. */

import { describe, expect, test } from 'vitest';
import { type Member, type MemberSetting, memberOf } from '../../test/support/fleet.ts';
import { VirtualClock } from '../testing/index.ts';
import { MemoryHub } from './memory.ts';

const EXCHANGES = ['prompt', 'interval'] as const;

/** A fleet to be. Its limit is one for all. */
function fleetWith(limit: MemberSetting['limit'], peers: MemberSetting['peers'] = {}, seed = 1) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, seed, delayMs: [1, 3], isLoopback: false });
  let members = 0;
  const join = (own: Partial<MemberSetting> = {}): Promise<Member> =>
    memberOf(hub.transport(`${members++}`), {
      ...{ clock, key: 'a key for the tests', limit, peers, keysMax: 100_000 },
      ...own,
    });
  return { clock, join, pass: (ms: number): Promise<void> => clock.pass(ms) };
}

/** What is left of a key's buckets. */
const left = ({ share }: Member, key = 'alice'): number[] =>
  share.standings(key).map(({ remaining }) => remaining);

const served = ({ share }: Member, key = 'alice'): number =>
  share.ask(key, 1).verdict === 'allow' ? 1 : 0;

describe.each(EXCHANGES)('a newcomer (%s)', (exchange) => {
  test('finds each bucket of `all` as it stands, and shuts nobody out', async () => {
    const [fast, slow] = [
      { rate: '10/s', burst: 10 },
      { rate: '3600/h', burst: 3600 },
    ];
    const { join, pass } = fleetWith({ all: [{ bucket: fast }, { bucket: slow }] }, { exchange });
    const old = await join();
    await pass(1500);
    for (let n = 0; n < 300; n++) {
      served(old);
      await pass(200); // half of what the fast one allows, for a minute
    }
    const late = await join();
    await pass(1000);
    for (let n = 0; n < 2; n++) {
      expect(Math.abs(left(late)[n] - left(old)[n])).toBeLessThanOrEqual(1);
    }
    let calls = 0;
    for (let n = 0; n < 40; n++) {
      calls += served(old) + served(late);
      await pass(250);
    }
    expect(calls).toBe(80);
  });
});
