import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  FaultyRegisters,
  type NetworkFaults,
  skewedClock,
} from '../../../test/support/faulty-registers.ts';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import { mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import type { Clock } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { EtcdBackend } from './backend.ts';
import type { RegisterStore } from './store.ts';

const HOUR_MS = 3_600_000;
const DEADLINE_MS = 200;
const START_TOLERANCE_MS = 5;
/** The longest delay from a decision to the start of its permit: the deadline and a stalled process. */
const MAX_LATE_MS = DEADLINE_MS + 30;

/** Advances time in steps of a millisecond, and runs pending callbacks after each. */
async function advance(world: VirtualClock, ms: number): Promise<void> {
  for (let n = 0; n < ms; n++) {
    world.advance(1);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

function factoryOf(registers: FaultyRegisters): RemoteBackendFactory {
  const store = registers.server(DEADLINE_MS / 3);
  const times = { deadlineMs: DEADLINE_MS, startToleranceOf: () => START_TOLERANCE_MS };
  const options = { prefix: '/', ...times, onUnavailable: 'deny' } as const;
  return {
    isRemote: true,
    create: (policy, context) => new EtcdBackend(policy, context, store, options),
  };
}

interface RunResult {
  /** Times at which permits started, in true time. */
  readonly starts: number[];
  readonly refused: number;
  readonly unacknowledged: number;
}

interface RunOptions {
  readonly seed: number;
  readonly limit: Limit;
  readonly faults: NetworkFaults;
  readonly processes?: number;
  readonly ms?: number;
}

/** Two of three processes always wait for a permit; the others check at random times. */
async function run({
  seed,
  limit,
  faults,
  processes = 6,
  ms = 4000,
}: RunOptions): Promise<RunResult> {
  const random = seededRandom(seed);
  const world = new VirtualClock(1_000_000);
  const registers = new FaultyRegisters(world, random, faults);
  const starts: number[] = [];
  let refused = 0;
  let isOver = false;
  const limiters = Array.from({ length: processes }, () => {
    const skew = { aheadMs: (2 * random() - 1) * HOUR_MS, faster: (random() - 0.5) * 0.0005 };
    const clock = skewedClock(world, skew, faults, random);
    return limiter({ name: 'api', limit, backend: factoryOf(registers), clock, random });
  });
  const record = (verdict: string): unknown =>
    verdict === 'allow' ? starts.push(world.now()) : refused++;
  const wait = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const maxWaitMs = random() < 0.5 ? Infinity : 200 * random(); // some return their reservation
      record((await api.acquire('token', 1, { wait: maxWaitMs })).verdict);
    }
  };
  const poll = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const result = await api.tryAcquire('token');
      record(result.verdict);
      await new Promise<void>((resolve) => {
        world.wakeAt(world.now() + random() * 50, resolve);
      });
    }
  };
  for (const [n, api] of limiters.entries()) (n % 3 === 2 ? poll : wait)(api);
  await advance(world, ms);
  isOver = true;
  const closing = Promise.all(limiters.map((api) => api.close()));
  await advance(world, 500);
  await closing;
  return {
    starts: starts.sort((a, b) => a - b),
    refused,
    unacknowledged: registers.unacknowledged,
  };
}

const leastGap = (starts: readonly number[]): number =>
  Math.min(...starts.slice(1).map((at, n) => at - starts[n]));

const faultSets = fc.record({
  lossRate: fc.constantFrom(0, 0.02, 0.1),
  maxDelayMs: fc.constantFrom(10, 100, 400),
  stallRate: fc.constantFrom(0, 0.1),
});

describe('etcd backend on faulty registers', () => {
  test('spacing: permits keep their interval despite loss, delay and clocks an hour apart', async () => {
    let started = 0;
    let unacknowledged = 0;
    const spacings = fc.record({
      every: fc.constantFrom(10, 40, 200),
      reserve: fc.constantFrom(0, 0, 3),
    });
    await fc.assert(
      fc.asyncProperty(fc.nat(), spacings, faultSets, async (seed, spacing, faults) => {
        const result = await run({ seed, limit: { spacing }, faults, ms: 1500 });
        started += result.starts.length;
        unacknowledged += result.unacknowledged;
        expect(leastGap(result.starts)).toBeGreaterThanOrEqual(spacing.every);
      }),
      { numRuns: 25 },
    );
    expect(started).toBeGreaterThan(200); // otherwise the property proves little
    expect(unacknowledged).toBeGreaterThan(20); // without unknown outcomes, too
  });

  test('spacing: a permit returned and taken again in one batch is written', async () => {
    const every = 2000; // a round number with tolerance and drift: no rounding error distinguishes the permits
    const world = new VirtualClock(1_000_000);
    const random = seededRandom(1);
    const registers = new FaultyRegisters(world, random, {
      lossRate: 0,
      maxDelayMs: 0,
      stallRate: 0,
    });
    const create = (): RemoteLimiter => {
      const limit = { spacing: { every, reserve: 3 } };
      return limiter({ name: 'api', limit, backend: factoryOf(registers), clock: world, random });
    };
    const [a, b] = [create(), create()];
    /** The due time of a permit that is checked now. */
    const dueAtOf = async (api: RemoteLimiter): Promise<number> => {
      const dueAt = api.check('token').then((decision) => {
        if (decision.verdict === 'deny') throw new Error('the check was refused');
        return world.now() + (decision.verdict === 'wait' ? decision.waitMs : 0);
      });
      await advance(world, 20);
      return dueAt;
    };
    await dueAtOf(b);
    const reservedAt = await dueAtOf(b);
    a.giveBack('token', 1, await dueAtOf(a)); // a wrote last, and b's bounds on its clock are wide
    await advance(world, 60);
    b.giveBack('token', 1, reservedAt);
    const again = await dueAtOf(b);
    expect((await dueAtOf(a)) - again).toBeGreaterThanOrEqual(every);
  });

  test('bucket: overshoot in any span is at most the refill of one deadline', async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(), faultSets, async (seed, faults) => {
        const limit = { bucket: { rate: 50, burst: 5 } };
        const { starts } = await run({ seed, limit, faults, ms: 1500 });
        expect(starts.length).toBeGreaterThan(10);
        for (const [from, since] of starts.entries()) {
          for (const [more, until] of starts.slice(from).entries()) {
            const spanMs = until - since + MAX_LATE_MS;
            expect(more + 1).toBeLessThanOrEqual(5.001 + 0.05 * spanMs * 1.0005);
          }
        }
      }),
      { numRuns: 10 },
    );
  });

  test('window: no period holds more than the limit despite loss, delay and clocks an hour apart', async () => {
    let started = 0;
    const windows = fc.record({
      limit: fc.constantFrom(1, 5, 12),
      per: fc.constantFrom(100, 300),
      steps: fc.constantFrom(1, 4, 16),
    });
    await fc.assert(
      fc.asyncProperty(fc.nat(), windows, faultSets, async (seed, window, faults) => {
        const { starts } = await run({ seed, limit: { window }, faults, ms: 1500 });
        started += starts.length;
        const log = starts.map((at) => ({ at, units: 1 }));
        expect(mostInAnyWindow(log, window.per)).toBeLessThanOrEqual(window.limit);
      }),
      { numRuns: 20 },
    );
    expect(started).toBeGreaterThan(200); // otherwise the property proves little
  });

  test('all: spacing, window and bucket hold together despite loss, delay and clocks an hour apart', async () => {
    let started = 0;
    const parts = { every: 20, window: { limit: 6, per: 300, steps: 8 }, burst: 4 };
    const { every, window, burst } = parts;
    const limit = { all: [{ spacing: { every } }, { window }, { bucket: { rate: 30, burst } }] };
    await fc.assert(
      fc.asyncProperty(fc.nat(), faultSets, async (seed, faults) => {
        const { starts } = await run({ seed, limit, faults, ms: 1500 });
        started += starts.length;
        expect(leastGap(starts)).toBeGreaterThanOrEqual(every);
        const log = starts.map((at) => ({ at, units: 1 }));
        expect(mostInAnyWindow(log, window.per)).toBeLessThanOrEqual(window.limit);
      }),
      { numRuns: 12 },
    );
    expect(started).toBeGreaterThan(100); // otherwise the property proves little
  });

  test('quota: each period admits the limit once, whatever is lost and however far apart wall clocks are', async () => {
    let started = 0;
    await fc.assert(
      fc.asyncProperty(fc.nat(), faultSets, async (seed, faults) => {
        const limit = { quota: { limit: 5, per: '2h' } } as const;
        const { starts } = await run({ seed, limit, faults, ms: 600 });
        started += starts.length;
        // Clocks differ by up to 2 h: at most two period boundaries are crossed, once each.
        expect(starts.length).toBeLessThanOrEqual(3 * 5);
      }),
      { numRuns: 10 },
    );
    expect(started).toBeGreaterThan(20);
  });

  test('ramp: no second of the register has more than its level', async () => {
    const limit = { ramp: { min: 5, max: 5, over: '1s' } } as const;
    await fc.assert(
      fc.asyncProperty(fc.nat(), faultSets, async (seed, faults) => {
        const { starts } = await run({ seed, limit, faults, ms: 2500 });
        expect(starts.length).toBeGreaterThan(0);
        // A span of 1 s overlaps two seconds, and a permit starts up to one deadline late.
        const log = starts.map((at) => ({ at, units: 1 }));
        expect(mostInAnyWindow(log, 1000 - MAX_LATE_MS)).toBeLessThanOrEqual(10);
        expect(starts.length).toBeLessThanOrEqual(5 * 4);
      }),
      { numRuns: 6 },
    );
  });

  test('window: utilisation above 85 % on a good network', async () => {
    const limit = { window: { limit: 20, per: 2000 } };
    const faults = { lossRate: 0, maxDelayMs: 5, stallRate: 0 };
    const { starts } = await run({ seed: 1, limit, faults, ms: 8000, processes: 4 });
    expect(starts.length).toBeGreaterThan(0.85 * 80);
  });

  describe.each(['deny', 'allow'] as const)(
    'without a quorum, onUnavailable: %s',
    (onUnavailable) => {
      const isOpen = onUnavailable === 'allow';

      function unreachable(compareAndSwap: RegisterStore['compareAndSwap']) {
        const clock = new VirtualClock(1_000_000);
        const process = new StallableClock(clock);
        const list = async () => [];
        const store = { compareAndSwap, list, grantLease: async () => 'lease', close() {} };
        const options = {
          prefix: '/',
          deadlineMs: DEADLINE_MS,
          startToleranceOf: () => START_TOLERANCE_MS,
          onUnavailable,
        };
        const context = {
          ...{ name: 'api', hasExplicitName: true, random: seededRandom(1), maxKeys: 10 },
          ...{
            clock: process,
            maxWaiters: 10,
            keepAlive: false,
            onCapacity() {},
            onAvailability() {},
          },
        };
        const policy = createPolicy({ bucket: { rate: 1, burst: 5 } }, seededRandom(1));
        return { clock, process, backend: new EtcdBackend(policy, context, store, options) };
      }

      test('check, checkBatch and takeUpTo follow it, and nothing is lent to other groups', async () => {
        const { backend } = unreachable(() => Promise.reject(new Error('no quorum')));
        expect(await backend.check('k', 1)).toMatchObject({
          decision: { verdict: onUnavailable },
          fromFallback: true,
        });
        expect(await backend.checkBatch('k', [1, 1])).toMatchObject({
          granted: isOpen ? 1 : 0,
          refusal: isOpen ? undefined : { verdict: 'deny', retryAfterMs: 500 },
          fromFallback: true,
        });
        expect(await backend.takeUpTo('k', 3)).toBe(isOpen ? 1 : 0);
        expect(await backend.takeUpTo('k', 0.5)).toBe(0);
        expect(await backend.takeSurplus('k', 3, 0)).toBe(0);
        await backend.credit('k', 3, 5); // the credit is lost
        expect(await backend.readState('k')).toBeUndefined();
        expect(backend.isAvailable).toBe(false);
        await backend.close();
      });

      test('operations beyond the bound are denied at once, and etcd stays available', async () => {
        const { backend } = unreachable(() => new Promise(() => {}));
        for (let n = 0; n < 10_000; n++) void backend.check(`key ${n}`, 1);
        expect((await backend.check('one more', 1)).decision.verdict).toBe('deny');
        expect(await backend.takeUpTo('one more', 1)).toBe(0);
        expect(backend.isAvailable).toBe(true);
        await backend.close();
      });

      test('an operation whose deadline passed while the process was blocked is denied, and etcd stays available', async () => {
        const { backend, clock, process } = unreachable(() => new Promise(() => {}));
        const checked = backend.check('k', 1);
        process.stall();
        clock.advance(2 * DEADLINE_MS);
        process.resume();
        process.fireOverdue();
        expect((await checked).decision.verdict).toBe('deny');
        expect(backend.isAvailable).toBe(true);
        await backend.close();
      });

      test('operations that wait longer than the deadline are denied while etcd replies', async () => {
        const { backend, clock } = unreachable(
          () =>
            new Promise((resolve) => {
              const changed = { isMatch: false, current: undefined, isAmbiguous: false } as const;
              clock.wakeAt(clock.now() + DEADLINE_MS / 4, () => resolve(changed));
            }),
        );
        const checks = Array.from({ length: 200 }, (_, n) => backend.check(`key ${n}`, 1));
        await advance(clock, DEADLINE_MS + 50);
        const decided = await Promise.all(checks);
        expect(decided.filter(({ decision }) => decision.verdict !== 'deny')).toEqual([]);
        expect(backend.isAvailable).toBe(true);
        await backend.close();
      });
    },
  );

  test('the back-off after lost swaps keeps the process alive: a caller waits for it', async () => {
    const clock = new VirtualClock(1_000_000);
    const keepsAlive: boolean[] = [];
    const recording: Clock = {
      now: () => clock.now(),
      wakeAt(at, callback, keepAlive) {
        keepsAlive.push(keepAlive);
        return clock.wakeAt(at, callback);
      },
    };
    let swaps = 0;
    const store: RegisterStore = {
      compareAndSwap: async (_key, _revision, replacement) =>
        replacement && ++swaps > 2
          ? { isMatch: true, revision: '1' }
          : { isMatch: false, current: undefined, isAmbiguous: false },
      list: async () => [],
      grantLease: async () => 'lease',
      close() {},
    };
    const times = { deadlineMs: DEADLINE_MS, startToleranceOf: () => START_TOLERANCE_MS };
    const options = { prefix: '/', ...times, onUnavailable: 'deny' } as const;
    const backend: RemoteBackendFactory = {
      isRemote: true,
      create: (policy, context) => new EtcdBackend(policy, context, store, options),
    };
    const limit = { bucket: { rate: 1, burst: 5 } };
    const api = limiter({ name: 'api', limit, backend, clock: recording });
    const checked = api.check('k');
    await advance(clock, 20);
    expect((await checked).verdict).toBe('allow');
    expect(swaps).toBe(3);
    expect(keepsAlive).toContain(true);
    await api.close();
  });

  test('spacing: utilisation above 85 % on a good network', async () => {
    const limit = { spacing: { every: 100 } };
    const faults = { lossRate: 0, maxDelayMs: 5, stallRate: 0 };
    const { starts } = await run({ seed: 1, limit, faults });
    const utilisation = (100 * (starts.length - 1)) / (starts[starts.length - 1] - starts[0]);

    expect(utilisation).toBeGreaterThan(0.85);
  });
});
