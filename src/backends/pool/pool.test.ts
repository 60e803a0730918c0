import { afterEach, expect, test, vi } from 'vitest';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import type { Clock } from '../../core/clock.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PoolBackend } from './backend.ts';
import { memoryStore } from './memory-store.ts';
import { Pool, type ResolvedPoolOptions } from './pool.ts';
import type { PoolStore } from './store.ts';

const OPTIONS: ResolvedPoolOptions = {
  ...{ name: 'p', id: 'a', onUnavailable: 'deny' },
  ...{ syncMs: 100, memberTimeoutMs: 1000, staleForMs: 5000 },
};

/** A store with a delay, which can be made unavailable. */
function world(answerMs = 0) {
  const clock = new VirtualClock(1_000_000);
  const memory = memoryStore(clock);
  const seen = { syncs: 0, closed: 0, isDown: false };
  const later = (): Promise<void> =>
    new Promise((done) => void clock.wakeAt(clock.now() + answerMs, done));
  const store: PoolStore = {
    ...memory,
    async sync(...args) {
      seen.syncs++;
      if (answerMs > 0) await later();
      if (seen.isDown) throw new Error('no server');
      return memory.sync(...args);
    },
    async close() {
      seen.closed++;
    },
  };
  const join = (options: Partial<ResolvedPoolOptions> = {}, through = store): Pool => {
    const pool = new Pool(through, { ...OPTIONS, ...options }, clock, () => 0.5);
    pool.open();
    return pool;
  };
  return { clock, store, seen, join, members: () => memory.members('p') };
}

const AGREED_MS = 3500;

/** A limit of 100 a second, divided by the pool. */
const limitIn = (pool: Pool, clock: Clock) =>
  limiter({
    limit: { ramp: { min: 100, max: 100, over: '1s' } },
    backend: {
      isRemote: false,
      create: (policy, setting) => new PoolBackend(policy, setting, pool),
    },
    clock,
  });

const warnings = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
afterEach(() => warnings.mockClear());

test('pool membership: after pause and resume there is one sync loop, and a part', async () => {
  const { clock, seen, join } = world(30);
  const pool = join();
  for (let n = 0; n < 10; n++) {
    await clock.advanceAsync(10); // a sync is under way
    void pool.pause();
    void pool.pause();
    pool.resume();
    pool.resume();
  }
  await clock.advanceAsync(AGREED_MS);
  expect(pool.view()).toMatchObject({ size: 1, rank: 0, failures: 0 });
  seen.syncs = 0;
  await clock.advanceAsync(1000);
  expect(seen.syncs).toBeLessThanOrEqual(10);
});

test('pool membership: leaving during a sync removes the member', async () => {
  const { clock, join, members } = world(30);
  const pool = join();
  await clock.advanceAsync(10);
  const closed = Promise.all([pool.close(), pool.close()]);
  await clock.advanceAsync(100);
  await closed;
  expect(await members()).toEqual([]);
});

test('pool membership: store calls are in order: a resumed member is not removed by its own leave', async () => {
  const { clock, store, seen, join, members } = world();
  const leaving: (() => void)[] = [];
  const slow: PoolStore = {
    ...store,
    async leave(...args) {
      await new Promise<void>((done) => leaving.push(done));
      await store.leave(...args);
    },
  };
  const pool = join({}, slow);
  await clock.advanceAsync(AGREED_MS);
  void pool.pause();
  pool.resume();
  const { syncs } = seen;
  await clock.advanceAsync(500);
  expect(seen.syncs).toBe(syncs);
  leaving.shift()?.();
  await clock.advanceAsync(AGREED_MS);
  expect(await members()).toHaveLength(1);
  expect(pool.view()).toMatchObject({ size: 1, isAgreed: true });
});

test('pool membership: a store that never responds blocks neither syncs nor close', async () => {
  const { clock, store, join } = world();
  const pool = join({}, { ...store, sync: () => new Promise(() => {}) });
  await clock.advanceAsync(12_000);
  expect(pool.view()).toMatchObject({ syncs: 3, failures: 2 });
  const closed = pool.close();
  await clock.advanceAsync(6000);
  await closed;
});

/** A process with a limit of 100 a second in the pool, which can be suspended. */
function createProcess({ clock, store }: ReturnType<typeof world>, nonce: number) {
  const processClock = new StallableClock(clock);
  const pool = new Pool(store, OPTIONS, processClock, () => nonce);
  pool.open();
  return { clock: processClock, pool, limited: limitIn(pool, processClock) };
}

/** The most that the processes take together in a second, by taking all they can every 50 ms. */
async function mostTakenPerSecond(
  clock: VirtualClock,
  running: readonly ReturnType<typeof createProcess>[],
  seconds: number,
): Promise<number> {
  const taken = new Map<number, number>();
  for (let n = 0; n < seconds * 20; n++) {
    const second = Math.floor(clock.now() / 1000);
    for (const { limited } of running)
      taken.set(second, (taken.get(second) ?? 0) + limited.takeUpTo('', Infinity));
    await clock.advanceAsync(50);
  }
  return Math.max(...taken.values());
}

test('pool membership: two members with one id divide the limit', async () => {
  const here = world();
  const [first, second] = [createProcess(here, 0.1), createProcess(here, 0.2)];
  await here.clock.advanceAsync(AGREED_MS);
  expect([first, second].map(({ pool }) => pool.view().size)).toEqual([2, 2]);
  expect(await mostTakenPerSecond(here.clock, [first, second], 5)).toBe(100);
  expect((await first.pool.members()).map(({ id }) => id)).toEqual(['a', 'a']);
  await first.pool.close();
  await here.clock.advanceAsync(2000);
  expect(second.pool.view()).toMatchObject({ id: 'a', size: 1, failures: 0 });
});

test.each([['timers first', true] as const, ['calls first', false] as const])(
  'pool membership: a suspended member replaced under its id uses nothing until it has synced, %s',
  async (_name, timersFirst) => {
    const here = world();
    const first = createProcess(here, 0.1);
    await here.clock.advanceAsync(AGREED_MS);
    first.clock.stall();
    const second = createProcess(here, 0.2);
    await here.clock.advanceAsync(AGREED_MS + 700); // within `staleFor`
    expect(second.limited.takeUpTo('', Infinity)).toBe(100);
    first.clock.resume();
    if (timersFirst) first.clock.fireOverdue();
    expect(first.limited.takeUpTo('', Infinity)).toBe(0);
    if (!timersFirst) first.clock.fireOverdue();
    await here.clock.advanceAsync(1000);
    expect(await mostTakenPerSecond(here.clock, [first, second], 12)).toBe(100);
    expect([first, second].map(({ pool }) => pool.view().size)).toEqual([2, 2]);
  },
);

test('pool membership: a member that was suspended for less than memberTimeout keeps its part', async () => {
  const here = world();
  const [first, second] = [createProcess(here, 0.1), createProcess(here, 0.2)];
  await here.clock.advanceAsync(AGREED_MS);
  first.clock.stall();
  await here.clock.advanceAsync(700);
  first.clock.resume();
  expect(first.pool.view().size).toBe(2);
  first.clock.fireOverdue();
  expect(await mostTakenPerSecond(here.clock, [first, second], 5)).toBe(100);
});

test('pool membership: a slow or hanging store does not count as a suspension', async () => {
  const { clock, store, join } = world();
  let isHanging = false;
  const sync: PoolStore['sync'] = (...args) =>
    isHanging ? new Promise(() => {}) : store.sync(...args);
  const pool = join({}, { ...store, sync });
  await clock.advanceAsync(AGREED_MS);
  isHanging = true;
  await clock.advanceAsync(4500);
  expect(pool.view()).toMatchObject({ size: 1, isAvailable: true }); // for `staleFor`
  await clock.advanceAsync(1000);
  expect(pool.view()).toMatchObject({ size: 0, isAvailable: false });
});

test('pool membership: opened rejects with the reason', async () => {
  const { clock, seen, join } = world();
  seen.isDown = true;
  const pool = join();
  await clock.advanceAsync(1200);
  await expect(pool.opened).rejects.toThrow(/^the pool p is unavailable: no server$/);
  const other = join();
  void other.close();
  await expect(other.opened).rejects.toThrow(/^the pool p is unavailable: it was closed$/);
});

test('pool membership: a failing listener stops neither syncs nor other listeners', async () => {
  const { clock, join } = world();
  const pool = join();
  const received: string[] = [];
  pool.on(() => {
    throw new Error('oh');
  });
  pool.on(({ type }) => received.push(type));
  await clock.advanceAsync(AGREED_MS);
  expect(pool.view().size).toBe(1);
  expect(received).toEqual(['size']);
  expect(warnings.mock.calls.map(([message]) => message)).toEqual([
    'a listener of the pool p failed: oh',
  ]);
  await pool.close();
});

test('pool membership: without listeners, a process warning reports an unavailable store', async () => {
  const { clock, seen, join } = world();
  const pool = join({ name: 'unwatched' });
  await clock.advanceAsync(AGREED_MS);
  seen.isDown = true;
  await clock.advanceAsync(4000);
  expect(warnings).not.toHaveBeenCalled(); // within staleFor
  await clock.advanceAsync(4000);
  expect(warnings.mock.calls.map(([message]) => message)).toEqual([
    'the pool unwatched is unavailable: no server; until it is available, onUnavailable decides: deny',
  ]);
  await pool.close();
});

test('pool membership: close leaves the store open', async () => {
  const { seen, join } = world();
  await join().close();
  expect(seen.closed).toBe(0);
});

test('pool membership: allow applies to an unavailable store only, not before joining, paused or closed', async () => {
  const { clock, seen, join } = world(30);
  const pool = join({ onUnavailable: 'allow' });
  const limited = limitIn(pool, clock);
  expect(limited.takeUpTo('', 7)).toBe(0); // before the first response
  await clock.advanceAsync(AGREED_MS);
  expect(limited.takeUpTo('', 7)).toBe(7);
  void pool.pause();
  expect(limited.takeUpTo('', 7)).toBe(0);
  pool.resume();
  await clock.advanceAsync(AGREED_MS);
  seen.isDown = true;
  await clock.advanceAsync(6000);
  expect(limited.takeUpTo('', 7000)).toBe(7000);
  void pool.close();
  expect(limited.takeUpTo('', 7)).toBe(0);
});

test('pool membership: keeps the process alive until opened has settled', async () => {
  const { clock, seen, store } = world(30);
  const stillAlive: boolean[] = [];
  const watched = {
    now: () => clock.now(),
    wakeAt(at: number, act: () => void, keepAlive: boolean) {
      stillAlive.push(keepAlive);
      return clock.wakeAt(at, act);
    },
  };
  seen.isDown = true;
  const pool = new Pool(store, OPTIONS, watched, () => 0.5);
  pool.open();
  await clock.advanceAsync(900);
  expect(new Set(stillAlive)).toEqual(new Set([true])); // during a sync, and between two
  await clock.advanceAsync(500);
  stillAlive.splice(0);
  await clock.advanceAsync(500);
  expect(new Set(stillAlive)).toEqual(new Set([false]));
  void pool.close();
  await clock.advanceAsync(100);
  expect(stillAlive.at(-1)).toBe(true); // until it has left
});

test('pool membership: pause before the first response rejects opened, and resume still joins', async () => {
  const { clock, join } = world(30);
  const pool = join();
  const opened = expect(pool.opened).rejects.toThrow('it was paused');
  void pool.pause();
  await opened;
  pool.resume();
  await clock.advanceAsync(AGREED_MS);
  expect(pool.view().size).toBe(1);
});
