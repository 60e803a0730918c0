import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  FaultyRegisters,
  type NetworkFaults,
  skewedClock,
} from '../../../test/support/registers.ts';
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
/** How much later than it was decided a permit of a bucket may begin, and a process may be held up besides. */
const MAX_LATE_MS = DEADLINE_MS + 30;

/** Lets time pass a little at a time, and everybody finish what they do. */
async function pass(world: VirtualClock, ms: number): Promise<void> {
  for (let n = 0; n < ms; n++) {
    world.advance(1);
    await new Promise((turn) => setImmediate(turn));
  }
}

function factoryOf(registers: FaultyRegisters): RemoteBackendFactory {
  const store = registers.server(DEADLINE_MS / 3);
  const times = { deadlineMs: DEADLINE_MS, startToleranceMs: START_TOLERANCE_MS };
  const options = { prefix: '/', ...times, onUnavailable: 'deny' } as const;
  return {
    isRemote: true,
    create: (policy, context) => new EtcdBackend(policy, context, store, options),
  };
}

interface Played {
  /** When permits began, in the world's time. */
  readonly starts: number[];
  readonly refused: number;
  readonly unheard: number;
}

interface Play {
  readonly seed: number;
  readonly limit: Limit;
  readonly faults: NetworkFaults;
  readonly processes?: number;
  readonly ms?: number;
}

/** Some processes wait for permits all the time, others ask now and then. */
async function play({ seed, limit, faults, processes = 6, ms = 4000 }: Play): Promise<Played> {
  const random = seededRandom(seed);
  const world = new VirtualClock(1_000_000);
  const registers = new FaultyRegisters(world, random, faults);
  const starts: number[] = [];
  let refused = 0;
  let isOver = false;
  const made = Array.from({ length: processes }, () => {
    const wrong = { aheadMs: (2 * random() - 1) * HOUR_MS, faster: (random() - 0.5) * 0.0005 };
    const clock = skewedClock(world, wrong, faults, random);
    return limiter({ name: 'api', limit, backend: factoryOf(registers), clock, random });
  });
  const tell = (verdict: string): unknown =>
    verdict === 'allow' ? starts.push(world.now()) : refused++;
  const wait = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const maxWaitMs = random() < 0.5 ? Infinity : 200 * random(); // some give back what they have reserved
      tell((await api.acquire('token', 1, { wait: maxWaitMs })).verdict);
    }
  };
  const ask = async (api: RemoteLimiter): Promise<void> => {
    while (!isOver) {
      const entry = await api.tryAcquire('token');
      tell(entry.verdict);
      await new Promise<void>((later) => {
        world.wakeAt(world.now() + random() * 50, later);
      });
    }
  };
  for (const [n, api] of made.entries()) (n % 3 === 2 ? ask : wait)(api);
  await pass(world, ms);
  isOver = true;
  const closing = Promise.all(made.map((api) => api.close()));
  await pass(world, 500);
  await closing;
  return { starts: starts.sort((a, b) => a - b), refused, unheard: registers.unacknowledged };
}

const leastGap = (starts: readonly number[]): number =>
  Math.min(...starts.slice(1).map((at, n) => at - starts[n]));

const faultSets = fc.record({
  lossRate: fc.constantFrom(0, 0.02, 0.1),
  maxDelayMs: fc.constantFrom(10, 100, 400),
  stallRate: fc.constantFrom(0, 0.1),
});

describe('a limit decided by registers', () => {
  test('keeps calls apart, whatever is lost or late, on clocks an hour apart', async () => {
    let begun = 0;
    let unheard = 0;
    const spacings = fc.record({
      every: fc.constantFrom(10, 40, 200),
      reserve: fc.constantFrom(0, 0, 3),
    });
    await fc.assert(
      fc.asyncProperty(fc.nat(), spacings, faultSets, async (seed, spacing, faults) => {
        const played = await play({ seed, limit: { spacing }, faults, ms: 1500 });
        begun += played.starts.length;
        unheard += played.unheard;
        expect(leastGap(played.starts)).toBeGreaterThanOrEqual(spacing.every);
      }),
      { numRuns: 25 },
    );
    expect(begun).toBeGreaterThan(200); // or the property would prove little,
    expect(unheard).toBeGreaterThan(20); // and so without swaps that nobody heard of
  }, 120_000);

  test('a place that is given back and taken again in one breath is as new as any other', async () => {
    const every = 2000; // with the slack and the drift a round number: no dust tells one place from the other
    const world = new VirtualClock(1_000_000);
    const random = seededRandom(1);
    const registers = new FaultyRegisters(world, random, {
      lossRate: 0,
      maxDelayMs: 0,
      stallRate: 0,
    });
    const made = (): RemoteLimiter => {
      const limit = { spacing: { every, reserve: 3 } };
      return limiter({ name: 'api', limit, backend: factoryOf(registers), clock: world, random });
    };
    const [a, b] = [made(), made()];
    /** When a place is due that is asked for now. */
    const ask = async (api: RemoteLimiter): Promise<number> => {
      const asked = api.check('token').then((told) => {
        if (told.verdict === 'deny') throw new Error('it was refused');
        return world.now() + (told.verdict === 'wait' ? told.waitMs : 0);
      });
      await pass(world, 20);
      return asked;
    };
    await ask(b);
    const mine = await ask(b);
    a.giveBack('token', 1, await ask(a)); // it wrote last, and the other knows little of its clock
    await pass(world, 60);
    b.giveBack('token', 1, mine);
    const again = await ask(b);
    expect((await ask(a)) - again).toBeGreaterThanOrEqual(every);
  });

  test('lets through no more than a bucket holds, in any stretch of time, and what flows in until it begins', async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(), faultSets, async (seed, faults) => {
        const limit = { bucket: { rate: 50, burst: 5 } };
        const { starts } = await play({ seed, limit, faults, ms: 1500 });
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
  }, 120_000);

  describe.each(['deny', 'allow'] as const)('when nobody can decide: %s', (onUnavailable) => {
    const isIn = onUnavailable === 'allow';

    function unreachable(compareAndSwap: RegisterStore['compareAndSwap']) {
      const clock = new VirtualClock(1_000_000);
      const store = { compareAndSwap, grantLease: async () => 'lease', close() {} };
      const options = {
        prefix: '/',
        deadlineMs: DEADLINE_MS,
        startToleranceMs: START_TOLERANCE_MS,
        onUnavailable,
      };
      const context = {
        ...{ name: 'api', hasExplicitName: true, clock, random: seededRandom(1), maxKeys: 10 },
        ...{ maxWaiters: 10, keepAlive: false, onCapacity() {}, onAvailability() {} },
      };
      const policy = createPolicy({ bucket: { rate: 1, burst: 5 } }, seededRandom(1));
      return { clock, backend: new EtcdBackend(policy, context, store, options) };
    }

    test('every way to ask is told the same, and none of it is given to others', async () => {
      const { backend } = unreachable(() => Promise.reject(new Error('no quorum')));
      expect(await backend.check('k', 1)).toMatchObject({
        decision: { verdict: onUnavailable },
        fromFallback: true,
      });
      expect(await backend.checkBatch('k', [1, 1])).toMatchObject({
        granted: isIn ? 1 : 0,
        refusal: isIn ? undefined : { verdict: 'deny', retryAfterMs: 500 },
        fromFallback: true,
      });
      expect(await backend.takeUpTo('k', 3)).toBe(isIn ? 1 : 0);
      expect(await backend.takeUpTo('k', 0.5)).toBe(0);
      expect(await backend.takeSurplus('k', 3, 0)).toBe(0);
      await backend.credit('k', 3, 5); // lost, as if it had not come
      expect(await backend.readState('k')).toBeUndefined();
      expect(backend.isAvailable).toBe(false);
      await backend.close();
    });

    test('too much at once is answered at once, and is no reason to think it gone', async () => {
      const { backend } = unreachable(() => new Promise(() => {}));
      for (let n = 0; n < 10_000; n++) void backend.check(`key ${n}`, 1);
      expect((await backend.check('one more', 1)).decision.verdict).toBe(onUnavailable);
      expect(backend.isAvailable).toBe(true);
      await backend.close();
    });
  });

  test('uses nearly all of it when the network is fine', async () => {
    const limit = { spacing: { every: 100 } };
    const faults = { lossRate: 0, maxDelayMs: 5, stallRate: 0 };
    const { starts } = await play({ seed: 1, limit, faults });
    const use = (100 * (starts.length - 1)) / (starts[starts.length - 1] - starts[0]);

    expect(use).toBeGreaterThan(0.85);
  }, 60_000);
});
