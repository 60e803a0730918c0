import { describe, expect, test, vi } from 'vitest';
import { LocalBackend } from '../backends/local/backend.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendFactory,
  type RemoteDecision,
  toBatchDecision,
} from '../backends/remote-backend.ts';
import { allow, type Decision, deny } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { seededRandom } from '../core/random.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { type LimiterOptions, limiter } from './limiter.ts';
import { RemoteWaitScheduler } from './remote-wait-scheduler.ts';

test('remote wait queue: a waiter gets its reserved place before the answers for later ones', async () => {
  const answers: ((answer: RemoteDecision) => void)[] = [];
  const backend: Partial<RemoteBackend> = {
    check: () => new Promise((answer) => answers.push(answer)),
    settle: async () => {},
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { spacing: { every: '1s', reserve: 2 } }, backend: factory });
  const first = api.acquire('token');
  const others = [api.acquire('token'), api.acquire('token')]; // they check together, once the first is answered
  answers[0]({ decision: allow(0), decidedAt: 0 });
  expect((await first).verdict).toBe('allow');
  await vi.waitFor(() => expect(answers.length).toBe(3));
  answers[1]({ decision: allow(0), decidedAt: 0 });
  expect((await others[0]).verdict).toBe('allow');
  answers[2]({ decision: allow(0), decidedAt: 0 });
  expect((await others[1]).verdict).toBe('allow');
  await api.close();
});

describe('remote limiter: a place that is lost after usableUntil', () => {
  /**
   * A backend whose slots are usable for 5 ms, one every `everyMs`. The first `times` replies are delayed by 20 ms,
   * between the backend and the queue or between the queue and the caller.
   */
  function delayed(times: number, where: 'answer' | 'queue' = 'answer', everyMs = 0) {
    const clock = new VirtualClock();
    let checks = 0;
    let opensAt = 0;
    const delay = async (): Promise<void> => {
      await undefined;
      if (where === 'queue') await undefined; // by then it is resolved, and its timer cancelled
      clock.advance(20);
    };
    const place = (): { decidedAt: number; usableUntil: number } => {
      if (checks++ < times) void delay();
      return { decidedAt: clock.now(), usableUntil: clock.now() + 5 };
    };
    const answer = async (): Promise<RemoteDecision> => ({ decision: allow(0), ...place() });
    const backend: Partial<RemoteBackend> = {
      check: answer,
      checkNow: answer,
      checkBatch: async (): Promise<BatchDecision> => {
        const opensInMs = opensAt - clock.now();
        if (opensInMs > 0) return { granted: 0, refusal: deny(opensInMs), decidedAt: clock.now() };
        const { decidedAt, usableUntil } = place();
        opensAt = decidedAt + everyMs;
        return { granted: 1, refusal: undefined, decidedAt, usableUntils: [usableUntil] };
      },
      close: async () => {},
      isAvailable: true,
    };
    const factory: RemoteBackendFactory = {
      isRemote: true,
      create: () => backend as RemoteBackend,
    };
    const api = limiter({ limit: { spacing: { every: '1s' } }, backend: factory, clock });
    return { api, clock, checks: () => checks };
  }

  test('acquire: checks again instead of returning it late', async () => {
    const { api, checks } = delayed(2);
    const permit = await api.acquire('token');
    expect(permit).toMatchObject({ verdict: 'allow', issuedAt: 40 });
    expect(checks()).toBe(3);
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
  });

  test('check, tryAcquire and an expired acquire: refuse it', async () => {
    expect((await delayed(1).api.check('token')).verdict).toBe('deny');
    expect((await delayed(0).api.check('token')).verdict).toBe('allow');
    expect((await delayed(1).api.tryAcquire('token')).verdict).toBe('deny');
    expect((await delayed(0).api.tryAcquire('token')).verdict).toBe('allow');
    const { api, checks } = delayed(9);
    expect(await api.acquire('token', 1, { wait: 30 })).toMatchObject({ verdict: 'deny' });
    expect(checks()).toBe(2);
  });

  test('acquire: checks again ahead of later arrivals', async () => {
    const { api, clock } = delayed(1, 'queue', 1000);
    const entered: string[] = [];
    const enter = async (name: string): Promise<void> => {
      const { verdict } = await api.acquire('token');
      entered.push(`${name} ${verdict}`);
    };
    const both = [enter('first'), enter('second')];
    await clock.advanceAsync(3000);
    await Promise.all(both);
    expect(entered).toEqual(['first allow', 'second allow']);
  });

  test('acquire: does not check again after its deadline or an abort', async () => {
    const late = delayed(1, 'queue');
    const waited: number[] = [];
    late.api.on((event) => event.type === 'decision' && waited.push(event.waitedMs));
    const entry = await late.api.acquire('token', 1, { wait: 10 });
    expect(entry).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    expect([late.checks(), waited]).toEqual([1, [20]]);

    const left = delayed(1, 'queue');
    const leaving = new AbortController();
    left.clock.wakeAt(20, () => leaving.abort(new Error('gone')));
    const { signal } = leaving;
    await expect(left.api.acquire('token', 1, { signal })).rejects.toThrow('gone');
    expect([left.checks(), left.api.stats().cancelled]).toEqual([1, 1]);
  });

  test('check and tryAcquire: return the time to the next place', async () => {
    const deny = { verdict: 'deny', retryAfterMs: 1000 };
    expect(await delayed(1).api.check('token')).toMatchObject(deny);
    expect(await delayed(1).api.tryAcquire('token')).toMatchObject(deny);
  });
});

test('remote limiter: acquire without wait rejects if its signal has aborted', async () => {
  const backend: Partial<RemoteBackend> = {
    checkNow: async () => ({ decision: allow(0), decidedAt: 0 }),
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { spacing: { every: '1s' } }, backend: factory });
  const signal = AbortSignal.abort(new Error('gone'));
  await expect(api.acquire('token', 1, { wait: 0, signal })).rejects.toThrow('gone');
  expect(api.stats()).toMatchObject({ allowed: 0, cancelled: 1 });
});

test('remote wait queue: refuses at once a call whose turn, behind others, comes after its wait', async () => {
  const clock = new VirtualClock();
  const backend: Partial<RemoteBackend> = {
    checkBatch: async () => ({ granted: 0, refusal: deny(1000), decidedAt: clock.now() }),
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { bucket: { rate: '1/s', burst: 1 } }, backend: factory, clock });
  const ends: unknown[] = [];
  const enter = () => api.acquire('key', 1, { wait: '2s' }).then((end) => ends.push(end));
  for (let n = 0; n < 4; n++) void enter(); // served after 1 s and 2 s; the others not within their wait
  await clock.advanceAsync(0);
  const refused = { verdict: 'deny', reason: 'too-long', retryAfterMs: 3000 };
  expect(ends).toMatchObject([refused, refused]);
  void enter(); // the queue sleeps: no reply is needed
  await clock.advanceAsync(0);
  expect(ends).toMatchObject([refused, refused, refused]);
  await api.close();
});

test('remote wait queue: polls with back-off for calls of other processes, and a local settlement wakes it at once', async () => {
  const clock = new VirtualClock();
  const checkedAt: number[] = [];
  let isFree = true;
  const backend: Partial<RemoteBackend> = {
    checkBatch: async () => {
      checkedAt.push(clock.now());
      const about = { decidedAt: clock.now() };
      if (!isFree) return { granted: 0, refusal: deny(0), ...about };
      isFree = false;
      return { granted: 1, refusal: undefined, leaseIds: ['lease'], ...about };
    },
    leaseOf: () => undefined,
    settle: async () => {
      isFree = true;
    },
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { concurrency: 1 }, backend: factory, clock, random: () => 1 });
  const held = await api.acquire('k');
  let served = 0;
  void api.acquire('k').then(() => served++);
  await clock.advanceAsync(1000);
  expect(checkedAt).toEqual([0, 0, 20, 60, 140, 300, 550, 800]); // at most every 250 ms
  expect(served).toBe(0);
  if (held.verdict === 'allow') held.settle();
  await clock.advanceAsync(0);
  expect([served, checkedAt.slice(8)]).toEqual([1, [1000]]);
  await api.close();
});

test('remote wait queue: requests each permit ahead of its time, so permits are exactly one interval apart', async () => {
  const clock = new VirtualClock();
  const [everyMs, lookaheadMs] = [40, 4];
  let opensAt = 0;
  const backend: Partial<RemoteBackend> = {
    checkBatch: async (): Promise<BatchDecision> => {
      const opensInMs = Math.max(0, opensAt - clock.now());
      const about = { decidedAt: clock.now(), lookaheadMs };
      if (opensInMs > lookaheadMs) return { granted: 0, refusal: deny(opensInMs), ...about };
      opensAt = clock.now() + opensInMs + everyMs;
      return { granted: 1, dueInMs: [opensInMs], refusal: undefined, ...about };
    },
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const options = { clock, random: () => 0.5, backend: factory };
  const api = limiter({ limit: { spacing: { every: everyMs } }, ...options });
  const startedAt: number[] = [];
  const enter = async (): Promise<void> => {
    for (let n = 0; n < 8; n++) {
      await api.acquire('k');
      startedAt.push(clock.now());
    }
  };
  const entered = enter();
  await clock.advanceAsync(7 * everyMs);
  await entered;
  expect(startedAt).toEqual([0, 40, 80, 120, 160, 200, 240, 280]);
  await api.close();
});

test('remote wait queue: waiters are served at the moment the backend is available again', async () => {
  const clock = new VirtualClock();
  let isAvailable = false;
  let onAvailability: (isAvailable: boolean, why: unknown) => void = () => {};
  const backend = {
    checkBatch: async (): Promise<BatchDecision> =>
      isAvailable
        ? { granted: 1, refusal: undefined, decidedAt: clock.now() }
        : { granted: 0, refusal: deny(500), decidedAt: clock.now(), fromFallback: true },
    close: async () => {},
    get isAvailable() {
      return isAvailable;
    },
  };
  const factory: RemoteBackendFactory = {
    isRemote: true,
    create: (_, context) => {
      ({ onAvailability } = context);
      return backend as Partial<RemoteBackend> as RemoteBackend;
    },
  };
  const api = limiter({ limit: { bucket: { rate: '1/s', burst: 1 } }, backend: factory, clock });
  const waiting = [api.acquire('a'), api.acquire('b')];
  await clock.advanceAsync(20);
  expect(api.stats().waiting).toBe(2);
  isAvailable = true;
  onAvailability(true, undefined);
  await clock.advanceAsync(0); // not after 500 ms
  expect(api.stats().waiting).toBe(0);
  const entries = await Promise.all(waiting);
  expect(entries).toMatchObject([{ verdict: 'allow' }, { verdict: 'allow' }]);
  await api.close();
});

test('remote wait queue: where timers end with their request, a request that ended holds up no waiter', async () => {
  const clock = new VirtualClock();
  let checks = 0;
  const checkBatch = (): Promise<BatchDecision> =>
    checks++ === 0
      ? new Promise(() => {}) // its request has ended
      : Promise.resolve({ granted: 1, refusal: undefined, decidedAt: 0 });
  const scheduler = new RemoteWaitScheduler({
    ...{ clock, random: () => 0, maxWaiters: 10, keepAlive: false, order: 'fifo' },
    backend: { checkBatch, check: () => Promise.reject(), settle: async () => {} },
    canReserve: false,
    expireMs: () => Infinity,
    cooldownMs: () => 0,
    hasOwnTimers: true,
  });
  const limits = { maxWaitMs: 60_000, priority: 0, isRequeued: false } as const;
  scheduler.waitForPermit('k', 1, limits);
  expect(await scheduler.waitForPermit('k', 1, limits)).toMatchObject({ verdict: 'allow' });
  expect(scheduler.size).toBe(1);
  clock.advance(60_000);
  expect(scheduler.size).toBe(0);
});

describe('remote wait queue: a check that fails', () => {
  const FAILED = new Error('the check failed');
  const factoryOf = (backend: Partial<RemoteBackend>): RemoteBackendFactory => {
    const all = { settle: async () => {}, close: async () => {}, isAvailable: true, ...backend };
    return { isRemote: true, create: () => all as RemoteBackend };
  };
  const endOf = (waiting: Promise<{ readonly verdict: string }>) =>
    waiting.then(
      ({ verdict }) => verdict,
      (error: unknown) => error,
    );

  /** Grants one call each 100 ms. The checks with these numbers fail. */
  function failing(
    isFailing: (check: number) => boolean,
    limit: Limit = { window: { limit: 1, per: 100 } },
  ) {
    const clock = new VirtualClock();
    let checks = 0;
    let opensAt = 100;
    const decide = async (): Promise<Decision> => {
      if (isFailing(++checks)) throw FAILED;
      const waitMs = opensAt - clock.now();
      if (waitMs > 0) return deny(waitMs);
      opensAt = clock.now() + 100;
      return allow(0);
    };
    const check = async () => ({ decision: await decide(), decidedAt: clock.now() });
    const backend = factoryOf({
      ...{ check, checkNow: check },
      checkBatch: async () => toBatchDecision(await check()),
    });
    const api = limiter({ limit, backend, clock, random: () => 0 });
    const acquire = (wait: Duration = '10s') => endOf(api.acquire('k', 1, { wait }));
    return { api, clock, acquire, checks: () => checks };
  }

  test('rejects its waiter with the error, and serves those behind it and later ones', async () => {
    for (const limit of [
      { window: { limit: 1, per: 100 } },
      { spacing: { every: 100, reserve: 9 } },
    ]) {
      const { api, clock, acquire } = failing((check) => check === 2, limit);
      const early = [acquire(), acquire(), acquire()];
      await clock.advanceAsync(1000);
      const late = acquire();
      await clock.advanceAsync(1000);
      const ends = await Promise.all([...early, late]);
      expect(ends.filter((end) => end === FAILED)).toEqual([FAILED]);
      expect(ends.filter((end) => end === 'allow').length).toBe(3);
      expect(api.stats()).toMatchObject({ waiting: 0, allowed: 3 });
      await api.close();
    }
  });

  test('ends every waiter by one check each if all of them fail', async () => {
    const { api, clock, acquire, checks } = failing(() => true);
    const ends = Promise.all(Array.from({ length: 5 }, () => acquire()));
    await clock.advanceAsync(10);
    expect(await ends).toEqual(Array(5).fill(FAILED));
    expect(checks()).toBe(5);
    const late = acquire('50ms');
    await clock.advanceAsync(60);
    expect(await late).toBe(FAILED);
    await api.close();
  });

  test('rejects no waiter behind one that has left meanwhile', async () => {
    const leaving = new AbortController();
    const { api, clock, acquire } = failing((check) => {
      if (check === 2) leaving.abort('left');
      return check === 2;
    });
    const first = endOf(api.acquire('k', 1, { signal: leaving.signal }));
    const others = [acquire(), acquire()];
    await clock.advanceAsync(1000);
    expect(await Promise.all([first, ...others])).toEqual(['left', 'allow', 'allow']);
    await api.close();
  });

  test('all([…]): a key function that throws once rejects the call that waits', async () => {
    for (const isLocalFirst of [true, false]) {
      const { api, clock } = failing(() => false);
      const local = limiter({ name: 'local', limit: { bucket: { rate: '1/s', burst: 9 } }, clock });
      let isBroken = false;
      const key = (name: string): string => {
        if (!isBroken) return name;
        isBroken = false;
        throw FAILED;
      };
      const parts = [{ limiter: api, key }, local];
      const both = all(isLocalFirst ? parts.reverse() : parts);
      const ends = [1, 2, 3].map(() => endOf(both.acquire('k', 1, { wait: '10s' })));
      await clock.advanceAsync(50);
      isBroken = true;
      await clock.advanceAsync(1000);
      ends.push(endOf(both.acquire('k', 1, { wait: '10s' })));
      await clock.advanceAsync(1000);
      expect(await Promise.all(ends)).toEqual([FAILED, 'allow', 'allow', 'allow']);
      expect(both.stats().waiting).toBe(0);
      await both.close();
    }
  });

  test('all([…]): returns what the other limits had granted', async () => {
    let checks = 0;
    const checkNow = async (): Promise<RemoteDecision> => {
      if (++checks === 2) throw FAILED;
      return { decision: allow(0), decidedAt: 0 };
    };
    const settled: string[] = [];
    const remote = (name: string) =>
      limiter({
        name,
        limit: { bucket: { rate: '1/s' } },
        backend: factoryOf({
          checkNow,
          settle: async (_, { outcome }) => {
            settled.push(`${name} ${outcome}`);
          },
        }),
      });
    const local = limiter({ name: 'local', limit: { concurrency: 1 } });
    const api = all([local, remote('a'), remote('b')]);
    expect(await endOf(api.tryAcquire('k'))).toBe(FAILED);
    expect(settled).toEqual(['a ignored']);
    expect(await endOf(api.acquire('k', 1, { wait: '1s' }))).toBe('allow');
    await api.close();
  });

  test('a settlement that fails is no unhandled rejection', async () => {
    const unhandled: unknown[] = [];
    const onUnhandled = (error: unknown): unknown => unhandled.push(error);
    process.on('unhandledRejection', onUnhandled);
    const backend = factoryOf({
      checkNow: async () => ({ decision: allow(0), decidedAt: 0 }),
      settle: () => Promise.reject(FAILED),
    });
    const api = limiter({ limit: { bucket: { rate: '1/s' } }, backend });
    const permit = await api.tryAcquire('k');
    if (permit.verdict === 'allow') permit.settle({ outcome: 'ignored' });
    await new Promise(setImmediate);
    process.off('unhandledRejection', onUnhandled);
    expect(unhandled).toEqual([]);
    await api.close();
  });
});

describe('remote wait queue: a wait that is long enough', () => {
  /** A server in this process, on the clock of the limiter. */
  const serverFactory = (): RemoteBackendFactory => ({
    isRemote: true,
    create(policy, context) {
      const { clock } = context;
      const server = new LocalBackend(policy, context);
      const backend: Partial<RemoteBackend> = {
        async checkBatch(key, costs) {
          const decidedAt = clock.now();
          const decisions: Decision[] = [];
          for (const cost of costs) {
            decisions.push(server.checkNow(key, cost, decidedAt));
            if (decisions.at(-1)?.verdict === 'deny') break;
          }
          const refusal = decisions.find(({ verdict }) => verdict === 'deny');
          return { granted: decisions.length - (refusal ? 1 : 0), refusal, decidedAt };
        },
        close: async () => {},
        isAvailable: true,
      };
      return backend as RemoteBackend;
    },
  });

  /** The fallback denies for `forMs`; after that the server is available. */
  const unavailableFactory = (forMs: number): RemoteBackendFactory => ({
    isRemote: true,
    create(policy, context) {
      const backend = serverFactory().create(policy, context);
      const { checkBatch } = backend;
      const { clock } = context;
      backend.checkBatch = async (key, costs) => {
        const leftMs = forMs - (clock.now() % 800);
        if (leftMs <= 0) return checkBatch(key, costs);
        return { granted: 0, refusal: deny(leftMs), decidedAt: clock.now(), fromFallback: true };
      };
      return backend;
    },
  });

  interface Call {
    readonly at: number;
    readonly cost: number;
    readonly wait: number;
    readonly priority?: number;
  }

  /** The time at which each call is served, and the results of the others. */
  async function endsOf(
    calls: readonly Call[],
    options: Pick<LimiterOptions, 'limit' | 'queue'>,
    backend?: RemoteBackendFactory,
  ): Promise<unknown[]> {
    const clock = new VirtualClock();
    const setting = { ...options, clock, random: () => 0 };
    const api = backend ? limiter({ ...setting, backend }) : limiter(setting);
    const ends: unknown[] = calls.map(() => 'waits');
    for (const [n, { at, cost, ...wait }] of calls.entries())
      clock.wakeAt(at, async () => {
        const result = await api.acquire('k', cost, wait);
        ends[n] = result.verdict === 'allow' ? clock.now() : 'denied';
      });
    await clock.advanceAsync(100_000);
    await api.close();
    return ends;
  }

  const fast = { bucket: { rate: '10/s', burst: 1 } } as const;
  const slow = { bucket: { rate: '500/h', burst: 500 } } as const;
  const call = (at: number, cost: number, wait: number, priority = 0): Call => ({
    at,
    cost,
    wait,
    priority,
  });

  test('serves the calls that are served in one process, at the same time, for random pairs of rules', async () => {
    for (let seed = 0; seed < 400; seed++) {
      const random = seededRandom(seed);
      const pick = <T>(...from: readonly T[]): T => from[Math.floor(random() * from.length)];
      const one = pick<Limit>(
        { bucket: { rate: pick('10/s', '50/s'), burst: pick(1, 3, 6) } },
        { spacing: { every: pick('20ms', '100ms') } },
        { window: { limit: pick(3, 5), per: '320ms' } },
      );
      const other = pick<Limit>(
        { bucket: { rate: '500/h', burst: pick(6, 20, 500) } },
        { bucket: { rate: '1/s', burst: pick(3, 10) } },
        { window: { limit: pick(4, 16, 50), per: '16s' } },
      );
      const isBuckets = 'bucket' in one && 'bucket' in other; // with other costs a local window is not exact
      const costs = isBuckets ? pick([1], [1, 1, 3], [1, 2, 3]) : [1];
      // All turns are at multiples of 10 ms, and no deadline is.
      const calls = Array.from({ length: pick(4, 12, 24) }, () => {
        const at = pick(0, 0, 10 * Math.floor(random() * 40));
        return call(at, pick(...costs), pick(95, 995, 4995, 10 * Math.floor(random() * 500) + 5));
      });
      const limit = pick<Limit>(one, other, { all: [one, other] }, { all: [other, one] });
      const ends = await endsOf(calls, { limit }, serverFactory());
      expect({ seed, ends }).toEqual({ seed, ends: await endsOf(calls, { limit }) });
    }
  });

  test.each<[string, Limit[]]>([
    ['two buckets, the slow one full', [fast, slow]],
    ['spacing and a full bucket', [{ spacing: { every: '100ms' } }, slow]],
    ['window and a full bucket', [slow, { window: { limit: 1, per: '80ms' } }]],
  ])('%s: is served when the fast rule allows', async (_, rules) => {
    const calls = [0, 1, 2, 3].map(() => call(0, 1, 5000));
    const ends = (await endsOf(calls, { limit: { all: rules } }, serverFactory())) as number[];
    expect(Math.max(...ends)).toBeLessThanOrEqual(320);
  });

  test('a lower cost is served when a higher one before it is refused, or comes after it with priority', async () => {
    const limit: Limit = { bucket: { rate: '10/s', burst: 10 } };
    const drained = call(0, 10, 1);
    const behind = [drained, call(0, 10, 500), call(0, 1, 800), call(0, 2, 800)];
    expect(await endsOf(behind, { limit }, serverFactory())).toEqual([0, 'denied', 100, 300]);
    const before = [drained, call(0, 10, 3000), call(10, 1, 800, 1), call(10, 1, 800, 1)];
    const queue = { order: 'priority' } as const;
    expect(await endsOf(before, { limit, queue }, serverFactory())).toEqual([0, 1200, 100, 200]);
  });

  test('a call behind one whose cost never fits is served', async () => {
    const calls = [call(0, 1, 1), call(0, 1, 500), call(0, 2, 500), call(0, 1, 250)];
    expect(await endsOf(calls, { limit: fast }, serverFactory())).toEqual([0, 100, 'denied', 200]);
  });

  test('a cool-down delays all calls alike, and a fallback does not say how fast the server is', async () => {
    const clock = new VirtualClock();
    const limit: Limit = { bucket: { rate: '1/s', burst: 10 } };
    const backends = { cooled: serverFactory(), unavailable: unavailableFactory(700) };
    for (const [name, backend] of Object.entries(backends)) {
      const api = limiter({ limit, backend, clock, random: () => 0 });
      if (name === 'cooled') await api.update('k', { retryAfterMs: 700 });
      const results = Promise.all(
        Array.from({ length: 10 }, () => api.acquire('k', 1, { wait: 1000 })),
      );
      await clock.advanceAsync(800);
      expect((await results).map(({ verdict }) => verdict)).toEqual(Array(10).fill('allow'));
      await api.close();
    }
  });
});
