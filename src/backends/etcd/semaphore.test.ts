import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { FaultyEntries, FreezableProcess } from '../../../test/support/faulty-entries.ts';
import { type NetworkFaults, skewedClock } from '../../../test/support/faulty-registers.ts';
import { type Clock, schedule } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { Permit } from '../../limiter/permit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { throttle } from '../../throttle/throttle.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { SemaphoreBackend } from './semaphore.ts';
import { ENTRY_TTL_SECONDS } from './semaphore-key.ts';
import type { EntryStore } from './store.ts';

const TTL_MS = ENTRY_TTL_SECONDS * 1000;
const DEADLINE_MS = 200;
const HOUR_MS = 3_600_000;
const NO_FAULTS: NetworkFaults = { lossRate: 0, maxDelayMs: 0, stallRate: 0 };

/** Advances time in steps, and runs pending callbacks after each. */
async function advance(world: VirtualClock, ms: number, stepMs = 4): Promise<void> {
  for (let passed = 0; passed < ms; passed += stepMs) {
    world.advance(stepMs);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const backendOn = (
  store: EntryStore,
  onUnavailable: 'deny' | 'allow' = 'deny',
): RemoteBackendFactory => ({
  isRemote: true,
  create: (policy, context) =>
    new SemaphoreBackend(policy, context, store, {
      prefix: '/',
      deadlineMs: DEADLINE_MS,
      onUnavailable,
    }),
});

/** A process with a limiter, and the permits it holds. */
interface SimulatedProcess {
  readonly process: FreezableProcess;
  readonly api: RemoteLimiter;
  readonly permits: Set<Permit>;
  /** While it is frozen for longer than a lease, or dead, other processes may use its slots. */
  mayBeLost: boolean;
}

interface Run {
  readonly seed: number;
  readonly most: number;
  readonly keys: readonly string[];
  readonly faults: NetworkFaults;
  readonly ms: number;
}

/** Processes acquire and settle at random; some are frozen, for a short or a long time, and one dies. */
async function run({ seed, most, keys, faults, ms }: Run) {
  const random = seededRandom(seed);
  const world = new VirtualClock(1_000_000);
  const entries = new FaultyEntries(world, random, faults);
  const counts = { granted: 0, refused: 0, peak: 0, aborted: 0 };
  let isOver = false;
  const pause = (clock: Clock, upToMs: number): Promise<void> =>
    new Promise((resolve) => {
      schedule(clock, clock.now() + random() * upToMs, resolve, false);
    });
  const isValid = (permit: Permit): boolean => !permit.signal.aborted;
  const unitsOf = ({ permits, mayBeLost }: SimulatedProcess, key: string): number => {
    const counted = mayBeLost ? [] : [...permits].filter((each) => each.key === key);
    return counted.filter(isValid).reduce((sum, { cost }) => sum + cost, 0);
  };
  const processes: SimulatedProcess[] = [0, 1, 2, 3].map(() => {
    const process = new FreezableProcess(world);
    const skew = { aheadMs: (2 * random() - 1) * HOUR_MS, faster: (random() - 0.5) * 0.0005 };
    const clock = process.clock(skewedClock(world, skew, faults, random));
    const backend = backendOn(entries.server(DEADLINE_MS / 3, process));
    const api = limiter({ name: 'api', limit: { concurrency: most }, backend, clock, random });
    return { process, api, permits: new Set<Permit>(), mayBeLost: false };
  });
  const worker = async (self: SimulatedProcess): Promise<void> => {
    const { api, permits } = self;
    const { clock } = api as unknown as { clock: Clock };
    while (!isOver) {
      const cost = 1 + Math.floor(random() * Math.min(3, most));
      const key = keys[Math.floor(random() * keys.length)];
      const waits = random() < 0.5;
      const result = await (waits
        ? api.acquire(key, cost, { wait: 400 })
        : api.tryAcquire(key, cost));
      if (result instanceof Permit) {
        permits.add(result);
        counts.granted++;
        const inFlight = processes.reduce((sum, each) => sum + unitsOf(each, key), 0);
        counts.peak = Math.max(counts.peak, inFlight);
        expect(inFlight).toBeLessThanOrEqual(most);
        await pause(clock, random() < 0.1 ? 6000 : 300);
        if (!isValid(result)) counts.aborted++;
        permits.delete(result);
        result.settle();
      } else counts.refused++;
      await pause(clock, 200);
    }
  };
  /** A process that was frozen for longer than a lease has lost its permits before it gets another one. */
  const freeze = (self: SimulatedProcess, forMs: number): void => {
    self.process.freeze(forMs);
    self.mayBeLost = forMs > TTL_MS - 1000;
    if (forMs < Infinity)
      world.wakeAt(world.now() + forMs + 50, () => {
        if (!self.process.isFrozen) self.mayBeLost = false;
      });
  };
  const violations: unknown[] = [];
  for (const self of processes)
    for (let n = 0; n < 1 + keys.length; n++)
      worker(self).catch((error: unknown) => violations.push(error));
  for (let passed = 0; passed < ms; passed += 1000) {
    const self = processes[Math.floor(random() * processes.length)];
    if (!self.process.isFrozen && random() < 0.3)
      freeze(self, random() < 0.4 ? TTL_MS * (1 + random()) : 3000 * random());
    if (passed === 4000) freeze(processes[0], Infinity);
    await advance(world, 1000);
  }
  isOver = true;
  await advance(world, 3 * TTL_MS, 50); // the last freeze ends, and so do leases
  if (violations.length > 0) throw violations[0];
  return { ...counts, left: entries.units, unacknowledged: entries.network.unacknowledged };
}

async function permitOf(acquiring: ReturnType<RemoteLimiter['acquire']>): Promise<Permit> {
  const permit = await acquiring;
  if (!(permit instanceof Permit)) throw new Error(`refused: ${permit.reason}`);
  return permit;
}

describe('etcd semaphore on faulty entries', () => {
  test('permits that are neither settled nor lost stay within the limit, and no place stays taken', async () => {
    const sums = { granted: 0, refused: 0, aborted: 0, unacknowledged: 0 };
    const faultSets = fc.record({
      lossRate: fc.constantFrom(0, 0.02, 0.1),
      maxDelayMs: fc.constantFrom(10, 100, 400),
      stallRate: fc.constantFrom(0, 0.1),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.nat(),
        fc.constantFrom(1, 3, 8),
        fc.constantFrom(['sink'], ['a', 'b', 'c']),
        faultSets,
        async (seed, most, keys, faults) => {
          const result = await run({ seed, most, keys, faults, ms: 15_000 });
          expect(result.left).toBe(0);
          for (const name of ['granted', 'refused', 'aborted', 'unacknowledged'] as const)
            sums[name] += result[name];
        },
      ),
      { numRuns: 16 },
    );
    expect(sums.granted).toBeGreaterThan(200); // otherwise the property proves little
    expect(sums.refused).toBeGreaterThan(100);
    expect(sums.aborted).toBeGreaterThan(0); // without lost permits, too
    expect(sums.unacknowledged).toBeGreaterThan(20); // without unknown outcomes, too
  });

  /** Limiters of several processes on a good network, whose connections can be cut. */
  function setUp(most: number, onUnavailable: 'deny' | 'allow' = 'deny') {
    const random = seededRandom(1);
    const world = new VirtualClock(1_000_000);
    const entries = new FaultyEntries(world, random, NO_FAULTS);
    const create = (permitTimeout?: number) => {
      const process = new FreezableProcess(world);
      const server = entries.server(DEADLINE_MS / 3, process);
      const renewals: number[] = [];
      const counts = { losesRenewals: 0, requests: 0, writes: 0 };
      const state = { isCut: false, losesReplies: false, renewals, ...counts };
      const call = async <T>(send: () => Promise<T>): Promise<T> => {
        state.requests++;
        if (state.isCut) throw new Error('connection lost');
        const reply = await send();
        if (state.losesReplies) throw new Error('connection lost');
        return reply;
      };
      const store: EntryStore = {
        readEntries: (prefix) => call(() => server.readEntries(prefix)),
        swapEntry: (swap) => {
          state.writes++;
          return call(() => server.swapEntry(swap));
        },
        renewEntries: (renewed, leaseId) => {
          state.renewals.push(renewed.length);
          return call(async () => {
            const revision = await server.renewEntries(renewed, leaseId);
            if (state.losesRenewals === 0) return revision;
            state.losesRenewals--;
            throw new Error('connection lost');
          });
        },
        grantLease: (seconds) => call(() => server.grantLease(seconds)),
        close() {},
      };
      const backend = backendOn(store, onUnavailable);
      const clock = process.clock(world);
      const api = limiter({
        ...{ name: 'api', limit: { concurrency: most }, permitTimeout },
        ...{ backend, clock, random },
      });
      return { process, state, api };
    };
    /** The result of a call after `ms` of virtual time. */
    const soon = async <T>(call: Promise<T>, ms = 40): Promise<T> => {
      await advance(world, ms);
      return call;
    };
    return { world, entries, create, soon };
  }

  test('a permit is renewed while its call runs, and its signal aborts when that was not possible', async () => {
    const { world, create, soon } = setUp(2);
    const [a, b] = [create(), create()];
    const permit = await soon(permitOf(a.api.acquire('sink', 2)));
    await advance(world, 3 * TTL_MS);
    expect(permit.signal.aborted).toBe(false);
    expect((await soon(b.api.tryAcquire('sink'))).verdict).toBe('deny');
    a.state.isCut = true;
    await advance(world, TTL_MS / 2 - 100); // it was renewed at most half a lease ago
    expect(permit.signal.aborted).toBe(false);
    await advance(world, TTL_MS / 2 + 100);
    expect(permit.signal.aborted).toBe(true);
    expect(permit.signal.reason).toMatchObject({ code: 'UNAVAILABLE' });
    await advance(world, 1000);
    const other = await soon(permitOf(b.api.tryAcquire('sink', 2)));
    // The call of the first process still runs: it is counted again as soon as possible.
    a.state.isCut = false;
    await advance(world, 3000);
    other.settle();
    await advance(world, 100);
    expect((await soon(b.api.tryAcquire('sink'))).verdict).toBe('deny');
    permit.settle();
    await advance(world, 100);
    expect((await soon(b.api.tryAcquire('sink', 2))).verdict).toBe('allow');
  });

  test('calls that run longer than permitTimeout keep their places', async () => {
    const { world, create, soon } = setUp(1);
    const [a, b] = [create(1000), create()];
    const ends: (() => void)[] = [];
    const call = throttle(() => new Promise<void>((end) => ends.push(end)), { limiter: a.api });
    const calling = call();
    await advance(world, 2 * TTL_MS);
    expect(a.api.stats()).toMatchObject({ expiredPermits: 0, held: 1 });
    expect((await soon(b.api.tryAcquire(''))).verdict).toBe('deny');
    ends[0]();
    await soon(calling, 100);
    expect((await soon(b.api.tryAcquire(''))).verdict).toBe('allow');
  });

  test('the places of a dead process are free when its lease ends, and not before', async () => {
    const { world, create, soon } = setUp(3);
    const [dead, other] = [create(), create()];
    await soon(permitOf(dead.api.acquire('sink', 3)));
    dead.process.freeze(Infinity);
    await advance(world, TTL_MS - 1000);
    expect((await soon(other.api.tryAcquire('sink'))).verdict).toBe('deny');
    const waiting = permitOf(other.api.acquire('sink', 3, { wait: '1m' }));
    await soon(waiting, 2500);
  });

  test('a grant that a frozen process reads after its lease has ended is refused', async () => {
    const { world, create, soon } = setUp(1);
    const [frozen, other] = [create(), create()];
    await soon(frozen.api.inspect('sink'));
    const acquiring = frozen.api.tryAcquire('sink');
    while (frozen.state.writes === 0) await advance(world, 1, 1);
    frozen.process.freeze(TTL_MS + 2000); // freezes while the write is in flight
    await advance(world, TTL_MS + 1500);
    const permit = await soon(permitOf(other.api.tryAcquire('sink')));
    expect((await soon(acquiring, 1000)).verdict).toBe('deny');
    expect(permit.signal.aborted).toBe(false);
  });

  test('a place whose grant had no reply is free soon after, with few requests', async () => {
    const { world, create, soon, entries } = setUp(1);
    const [a, b] = [create(), create()];
    await soon(permitOf(a.api.acquire('other'))); // it has a lease
    await soon(a.api.inspect('sink')); // and has read the entries
    a.state.losesReplies = true;
    expect((await soon(a.api.tryAcquire('sink'))).verdict).toBe('deny');
    expect(entries.units).toBe(2);
    expect((await soon(b.api.tryAcquire('sink'))).verdict).toBe('deny');
    a.state.losesReplies = false;
    a.state.requests = 0;
    await advance(world, 600);
    expect(entries.units).toBe(1);
    expect((await soon(b.api.tryAcquire('sink'))).verdict).toBe('allow');
    expect(a.state.requests).toBeLessThan(8);
  });

  test('onUnavailable allow: calls that an outage let through are counted afterwards', async () => {
    const { world, create, soon } = setUp(2, 'allow');
    const [a, b] = [create(), create()];
    await soon(a.api.inspect('sink'));
    a.state.isCut = true;
    await soon(a.api.inspect('sink'));
    const permits = await soon(
      Promise.all([1, 2, 3].map(() => permitOf(a.api.tryAcquire('sink')))),
    );
    expect(permits.map(({ fencingToken }) => fencingToken)).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
    expect(await soon(a.api.takeUpTo('sink', 5))).toBe(1);
    expect((await soon(a.api.tryAcquire('sink', 3))).verdict).toBe('deny'); // never fits
    a.state.isCut = false;
    await advance(world, 1500);
    expect(await soon(b.api.inspect('sink'))).toMatchObject({ inFlight: 2, remaining: 0 });
    for (const permit of permits) permit.settle();
    await advance(world, 100);
    expect(await soon(b.api.inspect('sink'))).toMatchObject({ inFlight: 1 });
  });

  test('600 calls at once are granted by few writes, each with its own fencing token', async () => {
    const { create, soon, entries } = setUp(1000);
    const { api, state } = create();
    const acquiring = Array.from({ length: 600 }, () => permitOf(api.tryAcquire('sink')));
    const permits = await soon(Promise.all(acquiring), 200);
    expect(state.writes).toBeLessThanOrEqual(8);
    expect(new Set(permits.map(({ fencingToken }) => fencingToken)).size).toBe(600);
    expect(entries.units).toBe(600);
    for (const permit of permits) permit.settle();
    await soon(api.inspect('sink'), 100);
    expect(entries.units).toBe(0);
    expect(state.writes).toBeLessThanOrEqual(12);
  });

  test('entries of many keys are renewed together, and one by one after a lost reply', async () => {
    const { world, create, soon, entries } = setUp(9);
    const { api, state } = create();
    const keys = Array.from({ length: 250 }, (_, n) => `key ${n}`);
    const permits = await soon(Promise.all(keys.map((key) => permitOf(api.tryAcquire(key)))), 500);
    state.writes = 0;
    await advance(world, 2 * TTL_MS, 10);
    expect(new Set(state.renewals)).toEqual(new Set([100, 50]));
    expect(state.renewals.length).toBeLessThanOrEqual(3 * 12);
    expect(state.writes).toBe(0);
    state.losesRenewals = 3;
    await advance(world, TTL_MS, 10);
    expect(state.losesRenewals).toBe(0);
    expect(state.writes).toBeGreaterThan(0);
    expect(entries.units).toBe(250);
    expect(permits.filter(({ signal }) => signal.aborted)).toEqual([]);
    const more = await soon(permitOf(api.tryAcquire('key 7', 8)));
    expect((await soon(api.tryAcquire('key 7'))).verdict).toBe('deny');
    for (const permit of [...permits, more]) permit.settle();
    await advance(world, 1000);
    expect(entries.units).toBe(0);
  });

  test('a key without calls in flight has no entry and causes no writes', async () => {
    const { world, create, soon, entries } = setUp(2);
    const { api, state } = create();
    (await soon(permitOf(api.tryAcquire('sink')))).settle();
    await advance(world, 100);
    expect(entries.units).toBe(0);
    const { writes } = state;
    await advance(world, 2 * TTL_MS, 20);
    expect(state.writes).toBe(writes);
  });
});
