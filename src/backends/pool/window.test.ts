/** Tests a sliding window in a pool with changing members, with an exact log of all calls as oracle. */

import { describe, expect, test, vi } from 'vitest';
import { type LoggedCall, mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import { seededRandom } from '../../core/random.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { memoryStore } from './memory-store.ts';
import { pool } from './options.ts';
import type { PoolStore } from './store.ts';

const LIMIT = 23;
const PER_MS = 2000;
const STEP_MS = 20;

vi.spyOn(process, 'emitWarning').mockImplementation(() => {});

/** One process: its limit, and whether it has crashed. */
function startMember(store: PoolStore, clock: VirtualClock, random: () => number) {
  const state = { isDead: false };
  const reachable: PoolStore = {
    ...store,
    sync: (...args) =>
      state.isDead ? Promise.reject(new Error('it has crashed')) : store.sync(...args),
  };
  const membership = pool(reachable, { clock, random, memberTimeout: '1s' });
  membership.opened.catch(() => {});
  const api = limiter({
    limit: { window: { limit: LIMIT, per: PER_MS } },
    backend: membership,
    clock,
  });
  return { api, membership, state };
}

type Member = ReturnType<typeof startMember>;

/** Members join, leave, pause and crash at random; each calls at random, some in bursts. */
async function run(seed: number, seconds: number, changesPerSecond: number): Promise<LoggedCall[]> {
  const random = seededRandom(seed);
  const clock = new VirtualClock(1_000_000);
  const store = memoryStore(clock);
  const log: LoggedCall[] = [];
  const members: Member[] = [startMember(store, clock, random)]; // the first one stays
  const change = (): void => {
    const index = 1 + Math.floor(random() * (members.length - 1));
    const draw = random();
    if (members.length < 2 || (draw < 0.4 && members.length < 7))
      members.push(startMember(store, clock, random));
    else if (draw < 0.6) void members.splice(index, 1)[0].membership.close();
    else if (draw < 0.8) members.splice(index, 1)[0].state.isDead = true;
    else if (draw < 0.9) void members[index].membership.pause();
    else members[index].membership.resume();
  };
  const call = ({ api }: Member): void => {
    if (random() < 0.5) return;
    const units = api.takeUpTo('', random() < 0.2 ? Infinity : 1);
    const returned = random() < 0.2 ? Math.floor(random() * (units + 1)) : 0;
    if (returned > 0) api.giveBack('', returned);
    if (units > returned) log.push({ at: clock.now(), units: units - returned });
  };
  for (let n = 0; n < (seconds * 1000) / STEP_MS; n++) {
    if (random() < (changesPerSecond * STEP_MS) / 1000) change();
    for (const member of members) call(member);
    await clock.advanceAsync(STEP_MS);
  }
  await Promise.all(
    members.map(({ membership, state }) => {
      state.isDead = true;
      return Promise.race([membership.close(), clock.advanceAsync(5000)]);
    }),
  );
  return log;
}

describe('pool, sliding window', () => {
  test.each([1, 2, 3, 4, 5, 6])(
    'window in a pool: no period holds more than the limit while members come and go (seed %i)',
    async (seed) => {
      const log = await run(seed, 30, seed % 2 === 0 ? 0.3 : 1);
      expect(mostInAnyWindow(log, PER_MS)).toBeLessThanOrEqual(LIMIT);
      expect(log.length).toBeGreaterThan(30); // otherwise the property proves little
    },
  );

  test('window in a pool: members that stay use at least 94 % of the limit', async () => {
    const clock = new VirtualClock(1_000_000);
    const store = memoryStore(clock);
    const random = seededRandom(1);
    const members = [1, 2, 3].map(() => startMember(store, clock, random));
    const take = async (ms: number): Promise<number> => {
      let taken = 0;
      for (let n = 0; n < ms / STEP_MS; n++) {
        for (const { api } of members) taken += api.takeUpTo('', Infinity);
        await clock.advanceAsync(STEP_MS);
      }
      return taken;
    };
    await take(6000); // they agree, and a window passes
    expect(await take(34_000)).toBeGreaterThanOrEqual((0.94 * LIMIT * 34_000) / PER_MS);
    const closing = Promise.all(members.map(({ membership }) => membership.close()));
    await clock.advanceAsync(100);
    await closing;
  });
});
