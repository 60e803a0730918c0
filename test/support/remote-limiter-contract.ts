/**
 * The contract of remote limiters: the same tests for every backend that decides elsewhere.
 */

import { expect, test, vi } from 'vitest';
import type { Duration } from '../../src/core/duration.ts';
import { seededRandom } from '../../src/core/random.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { all } from '../../src/limiter/composite-limiter.ts';
import type { AvailabilityEvent } from '../../src/limiter/events.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import type { Limiter } from '../../src/limiter/limiter-interface.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { VirtualClock } from '../../src/testing/virtual-clock.ts';
import { remoteSemaphoreContract } from './remote-semaphore-contract.ts';
import { OUTAGE_DEADLINE_MS as deadlineMs } from './wait-timeout.ts';
import { type LoggedCall, mostInAnyWindow } from './window-oracle.ts';

/** A fresh backend for each test, and the limiters that share it. */
export interface RemoteHarness {
  /** A limiter named `api`, of the first or the second process; closed after the test. */
  createShared(limit: Limit, options?: RemoteHarnessOptions): RemoteLimiter;
  /** The backend is unavailable while `act` runs. */
  whileUnavailable(act: () => Promise<void>): Promise<void>;
}

export interface RemoteHarnessOptions {
  readonly isSecondProcess?: boolean;
  readonly deadlineMs?: number;
  readonly onUnavailable?: 'deny';
  readonly queue?: { readonly max: number };
}

/** For tests that are not about a deadline. */
export const UNHURRIED = { deadlineMs: 10_000 };

export const bucketLimit = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

export function remoteLimiterContract(harness: RemoteHarness): void {
  const { whileUnavailable } = harness;
  const createShared: RemoteHarness['createShared'] = (limit, options) =>
    harness.createShared(limit, { ...UNHURRIED, ...options });
  remoteSemaphoreContract(harness);

  test('check: two processes share one count', async () => {
    const [a, b] = [
      createShared(bucketLimit(0.1, 3)),
      createShared(bucketLimit(0.1, 3), { isSecondProcess: true }),
    ];
    expect(await a.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 1 });
    expect(await b.check('alice')).toEqual({ verdict: 'allow', remaining: 0 });
    const refused = await a.check('alice');
    expect(refused).toMatchObject({ verdict: 'deny' });
    expect(await b.check('bob')).toEqual({ verdict: 'allow', remaining: 2 });
    expect(await a.check('alice', 4)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    expect(a.stats()).toMatchObject({ allowed: 1, denied: 2, isAvailable: true, fallback: 0 });
  });

  test('lockout: failures of two processes lock the key in both, and a success opens it', async () => {
    const limit = { lockout: { after: 3, lock: ['1m', '5m'] } } as const;
    const [a, b] = [false, true].map((isSecondProcess) => createShared(limit, { isSecondProcess }));
    for (const api of [a, b, a]) {
      expect((await api.check('alice')).verdict).toBe('allow');
      await api.report('alice', 'failure');
    }
    for (const api of [a, b]) {
      const refused = await api.check('alice');
      expect(refused).toMatchObject({ verdict: 'deny', reason: 'locked' });
      const { retryAfterMs } = refused as { retryAfterMs: number };
      expect(retryAfterMs).toBeGreaterThan(50_000);
      expect(retryAfterMs).toBeLessThanOrEqual(60_000 + 1000); // etcd: clocks may differ
    }
    expect(await b.inspect('alice')).toMatchObject({ locks: 1, failures: 3, by: 'api' });
    expect(await b.tryAcquire('alice')).toMatchObject({ verdict: 'deny', reason: 'locked' });
    await b.report('alice', 'success');
    const permit = await a.tryAcquire('alice');
    if (permit.verdict === 'allow') permit.settle({ attempt: 'success' });
    await vi.waitFor(async () =>
      expect(await b.inspect('alice')).toMatchObject({ remaining: 3, failures: 0, locks: 1 }),
    );
    await expect(createShared(bucketLimit(1, 1)).report('alice', 'failure')).rejects.toThrow(
      /`limit` to be a lockout/,
    );
  });

  test('lockout: a success of a key that was checked is no process warning', async () => {
    const emitted = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const api = createShared({ lockout: { after: 3 } });
    for (const key of ['alice', 'bob']) {
      await api.check(key);
      await api.report(key, 'success');
      expect(await api.inspect(key)).toMatchObject({ failures: 0 });
    }
    expect(emitted).not.toHaveBeenCalled();
    emitted.mockRestore();
  });

  test('lockout: of 100 logins in flight at once over two processes, `after` are allowed', async () => {
    const limit = { lockout: { after: 5 } };
    const [a, b] = [false, true].map((isSecondProcess) => createShared(limit, { isSecondProcess }));
    const decisions = await Promise.all(
      Array.from({ length: 100 }, (_, n) => (n % 2 ? a : b).check('alice')),
    );
    expect(decisions.filter(({ verdict }) => verdict === 'allow').length).toBe(5);
  });

  test('peek: returns the decision, changes nothing and is not counted', async () => {
    const api = createShared(bucketLimit(0.1, 3));
    expect(await api.peek('alice', 3)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await api.peek('alice', 4)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    await api.check('alice', 2);
    expect(await api.peek('alice')).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await api.peek('alice', 2)).toMatchObject({ verdict: 'deny' });
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
    const spaced = createShared({ spacing: { every: '10s', reserve: 2 } });
    await spaced.check('token');
    expect(await spaced.peek('token')).toMatchObject({ verdict: 'deny' });
    expect((await spaced.inspect('token'))?.reserved).toBe(0);
  });

  test('settle gives unused cost back; takeUpTo takes what there is', async () => {
    const api = createShared(bucketLimit(0.1, 10));
    const permit = await api.tryAcquire('llm', 8);
    if (permit.verdict === 'allow') permit.settle({ used: 3 });
    await vi.waitFor(async () => expect((await api.inspect('llm'))?.remaining).toBe(7));
    expect(await api.takeUpTo('llm', Infinity)).toBe(7);
    await api.giveBack('llm', 4);
    expect((await api.inspect('llm'))?.remaining).toBe(4);
    await api.update('llm', { hits: 5 });
    expect(await api.inspect('llm')).toMatchObject({ remaining: -1, by: 'api' });
  });

  test('check: reserves places ahead, counts them, and settle gives one back by its due time', async () => {
    const api = createShared({ spacing: { every: '1h', reserve: 2, expire: '3s' } });
    expect((await api.check('token')).verdict).toBe('allow');
    const first = await api.check('token');
    const second = await api.check('token');
    if (first.verdict !== 'wait' || second.verdict !== 'wait') return expect.unreachable();
    expect(Number(second.dueAt) - Number(first.dueAt)).toBeGreaterThan(3_600_000 - 1);
    expect(second.expiresAt).toBe(Number(second.dueAt) + 3000);
    expect((await api.inspect('token'))?.reserved).toBe(2);
    expect((await api.check('token')).verdict).toBe('deny');
    await api.settle('token', { outcome: 'ignored', dueAt: Number(second.dueAt) });
    expect((await api.inspect('token'))?.reserved).toBe(1);
    expect(api.stats()).toMatchObject({ allowed: 3, waited: 2, reserved: 2 });
  });

  test('acquire: serves waiters of two processes, never closer than the spacing', async () => {
    const limit = { spacing: { every: 20 } } as const;
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    const entries = await Promise.all(
      Array.from({ length: 20 }, (_, n) => (n % 2 ? a : b).acquire('token')),
    );
    const times = entries
      .map((entry) => (entry.verdict === 'allow' ? entry.dueAt : Number.NaN))
      .sort((x, y) => x - y);
    const gaps = times.slice(1).map((at, n) => at - times[n]);
    expect(Math.min(...gaps)).toBeGreaterThanOrEqual(20 - 1e-6);
    expect([a.stats().waiting, b.stats().waiting]).toEqual([0, 0]);
  });

  test('acquire: serves waiters with reserved places', async () => {
    const api = createShared({ spacing: { every: 20, reserve: 50 } });
    const since = performance.now();
    const entries = await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
    expect(entries.every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(performance.now() - since).toBeGreaterThanOrEqual(9 * 20);
  });

  test.each([1, 2, 3, 4, 5, 6, 7, 8])(
    'acquire: serves all that a local limiter serves, and none earlier, with two random rules (seed %i)',
    async (seed) => {
      const random = seededRandom(seed);
      const pick = <T>(...from: readonly T[]): T => from[Math.floor(random() * from.length)];
      const windowMs = 160;
      const fast = pick<Limit>(
        bucketLimit(pick(20, 40), pick(1, 3)),
        { spacing: { every: pick('20ms', '40ms') } },
        { window: { limit: pick(2, 3), per: windowMs } },
      );
      // It has enough for permits that are lost on the way, and else opens after the wait.
      const slow = pick<Limit>(
        { bucket: { rate: '1/h', burst: 500 } },
        { window: { limit: 500, per: '1h' } },
      );
      const limit = { all: pick([fast, slow], [slow, fast]) };
      const waitsOf = (api: RemoteLimiter | Limiter, now: () => number) =>
        Array.from({ length: 8 }, async () => {
          const since = now();
          const { verdict } = await api.acquire('k', 1, { wait: '50s' });
          return verdict === 'allow' ? now() - since : Infinity;
        });
      const clock = new VirtualClock();
      const local = waitsOf(limiter({ limit, clock }), () => clock.now());
      await clock.advanceAsync(50_000);
      const expected = await Promise.all(local);
      const waits = await Promise.all(waitsOf(createShared(limit), () => performance.now()));
      expect(Math.max(...expected, ...waits)).toBeLessThan(Infinity);
      const earlyMs = Math.max(...expected.map((ms, n) => ms - waits[n]));
      expect(earlyMs).toBeLessThan(5 + windowMs / 16); // two clocks, and the step of a window
    },
  );

  test('acquire: expires at its deadline; an abort gives the reserved place back', async () => {
    const api = createShared({ spacing: { every: '1h', reserve: 1 } });
    await api.check('token');
    expect(await api.acquire('token', 1, { wait: 1000 })).toMatchObject({
      verdict: 'deny',
      reason: 'too-long',
    });
    const abort = new AbortController();
    const waiting = api.acquire('token', 1, { signal: abort.signal });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(1));
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    expect(api.stats()).toMatchObject({ waiting: 0, cancelled: 1 });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
  });

  test('acquire: queue.max bounds waiters over all keys; a call granted at once does not count', async () => {
    for (const limit of [{ every: '1h' }, { every: '2h', reserve: 1 }] as const) {
      const api = createShared({ spacing: limit }, { queue: { max: 2 } });
      const keys = ['a', 'b', 'c', 'd'].map((key) => `${key} ${limit.every}`);
      const first = await Promise.all(keys.map((key) => api.acquire(key)));
      expect(first).toMatchObject(keys.map(() => ({ verdict: 'allow' })));
      const abort = new AbortController();
      const rest = keys.map((key) => api.acquire(key, 1, { signal: abort.signal }));
      const ends = Promise.allSettled(rest);
      await vi.waitFor(() => expect(api.stats()).toMatchObject({ waiting: 2, denied: 2 }));
      expect(await api.acquire(keys[0])).toMatchObject({ verdict: 'deny', reason: 'queue-full' });
      abort.abort(new Error('enough'));
      await ends;
      expect(api.stats().waiting).toBe(0);
    }
  });

  test('acquire: without wait, refuses at once behind a queue', async () => {
    const api = createShared({ spacing: { every: '1h' } });
    await api.acquire('token');
    const abort = new AbortController();
    const waiting = api.acquire('token', 1, { signal: abort.signal });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    const refused = { verdict: 'deny', reason: 'too-long' };
    expect(await api.acquire('token', 1, { wait: 0 })).toMatchObject(refused); // or this test waits for an hour
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
  });

  test('acquire: waiters are served when the backend is available again', async () => {
    const api = createShared({ spacing: { every: 1 } }, { deadlineMs });
    await untilAvailable(api, 'token');
    let waiting: Promise<unknown> = Promise.resolve();
    await whileUnavailable(async () => {
      waiting = api.acquire('token');
      await vi.waitFor(() => expect(api.stats().isAvailable).toBe(false));
    });
    expect(await waiting).toMatchObject({ verdict: 'allow' });
  });

  test('window: two processes share one count, and unused cost comes back', async () => {
    const limit = { window: { limit: 5, per: '1h' } } as const;
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    expect(await a.check('alice', 2)).toEqual({ verdict: 'allow', remaining: 3 });
    const permit = await b.tryAcquire('alice', 3);
    const refused = await a.check('alice');
    expect(refused).toMatchObject({ verdict: 'deny' });
    if (refused.verdict === 'deny') expect(refused.retryAfterMs).toBeGreaterThan(3_500_000);
    expect(await a.check('alice', 6)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    if (permit.verdict === 'allow') permit.settle({ used: 1 });
    await vi.waitFor(async () => expect((await a.inspect('alice'))?.remaining).toBe(2));
    expect(await a.takeUpTo('alice', Infinity)).toBe(2);
    await a.giveBack('alice', 1);
    expect(await b.peek('alice')).toEqual({ verdict: 'allow', remaining: 0 });
    expect((await b.inspect('alice'))?.rules).toMatchObject([{ quota: 5, windowMs: 3_600_000 }]);
    await a.update('alice', { hits: 3 });
    expect((await b.inspect('alice'))?.remaining).toBe(-2);
  });

  test('window: no period holds more than the limit, whatever processes check and wait', async () => {
    const [most, perMs] = [20, 300];
    const limit = { window: { limit: most, per: perMs } };
    const apis = [1, 2, 3, 4].map((n) => createShared(limit, { isSecondProcess: n % 2 === 0 }));
    const log: LoggedCall[] = [];
    const until = performance.now() + 1500;
    const served = () => log.reduce((sum, { units }) => sum + units, 0);
    const isOver = () => performance.now() > until && served() > most; // otherwise the property proves little
    const call = async (api: RemoteLimiter, n: number): Promise<void> => {
      while (!isOver()) {
        const cost = 1 + (log.length % 3);
        const result = await (n === 0
          ? api.acquire('token', cost, { wait: 200 })
          : api.tryAcquire('token', cost));
        if (result.verdict !== 'allow') {
          await new Promise((resolve) => setTimeout(resolve, 7 * n));
          continue;
        }
        const used = log.length % 5 === 0 ? 0 : cost;
        log.push({ at: result.dueAt, units: used });
        result.settle({ used });
      }
    };
    await Promise.all(apis.flatMap((api, n) => [call(api, n), call(api, n), call(api, 0)]));
    expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(most);
  });

  test('quota: two processes share one period, and tell when it ends', async () => {
    const limit = { quota: { limit: 5, per: 'month', timeZone: 'Asia/Kathmandu' } } as const;
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    expect(await a.check('alice', 3)).toEqual({ verdict: 'allow', remaining: 2 });
    const permit = await b.tryAcquire('alice', 2);
    const refused = await a.check('alice');
    const local = new Date(Date.now() + 5.75 * 3_600_000);
    const end = Date.UTC(local.getUTCFullYear(), local.getUTCMonth() + 1) - 5.75 * 3_600_000;
    expect(refused.verdict).toBe('deny');
    if (refused.verdict === 'deny')
      expect(Math.abs(refused.retryAfterMs - (end - Date.now()))).toBeLessThan(10_000);
    if (permit.verdict === 'allow') permit.settle({ used: 1 });
    await vi.waitFor(async () =>
      expect(await a.inspect('alice')).toMatchObject({ remaining: 1, resetsAt: end }),
    );
    expect(await a.check('alice', 6)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
  });

  test('quota: each period of the calendar admits the limit, whatever processes check', async () => {
    const [most, perMs] = [7, 1000]; // longer than three round trips on a loaded machine
    const limit = { quota: { limit: most, per: perMs } };
    const apis = [1, 2, 3].map((n) => createShared(limit, { isSecondProcess: n % 2 === 0 }));
    const used = new Map<number, number>();
    const call = async (api: RemoteLimiter): Promise<void> => {
      while (used.size < 3) {
        const [{ resetsAt: before = 0 } = {}, decision, { resetsAt: after = 0 } = {}] = [
          await api.inspect('k'),
          await api.check('k'),
          await api.inspect('k'),
        ];
        if (decision.verdict === 'allow' && before === after)
          used.set(after, (used.get(after) ?? 0) + 1);
      }
    };
    await Promise.all(apis.map(call));
    expect(Math.max(...used.values())).toBeLessThanOrEqual(most);
  });

  test('ramp: two processes share the tokens of a second, and a refused call makes it grow', async () => {
    const limit: Limit = { ramp: { min: 2, max: 4, over: '2s' } };
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    let attempt = 0;
    await vi.waitFor(async () => {
      const key = `k${attempt++}`;
      const second = () => Math.floor(Date.now() / 1000);
      const began = second();
      const decisions = await Promise.all(
        Array.from({ length: 12 }, (_, n) => (n % 2 ? a : b).check(key)),
      );
      if (second() !== began) throw new Error('a second began meanwhile');
      const allowed = decisions.filter(({ verdict }) => verdict === 'allow').length;
      expect(allowed).toBe(2);
    }, 30_000);
    // Three at once do not fit at first; each second with a call raises the level by one.
    await vi.waitFor(async () => expect((await a.check('grows', 3)).verdict).toBe('allow'), {
      timeout: 30_000,
      interval: 200,
    });
  });

  test('all: every rule of one limit must allow, and a refused call charges none of them', async () => {
    const limit: Limit = {
      all: [
        { bucket: { rate: 0.001, burst: 6 } },
        { window: { limit: 4, per: '1h' } },
        { quota: { limit: 100, per: 'year' } },
      ],
    };
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    const left = async (api: RemoteLimiter) =>
      (await api.inspect('k'))?.rules.map(({ remaining }) => remaining);
    expect(await a.check('k', 3)).toEqual({ verdict: 'allow', remaining: 1 });
    expect(await b.check('k', 2)).toMatchObject({ verdict: 'deny' });
    expect(await left(a)).toEqual([3, 1, 97]);
    expect(await b.check('k', 1)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await left(b)).toEqual([2, 0, 96]);
    await a.change({
      all: [
        { bucket: { rate: 0.001, burst: 10 } },
        { window: { limit: 8, per: '1h' } },
        { quota: { limit: 50, per: 'year' } },
      ],
    });
    expect(await left(a)).toEqual([6, 4, 46]);
  });

  test('all: a lock-out counts the refusals of the other rules, of all processes', async () => {
    const limit: Limit = {
      all: [
        { bucket: { rate: 0.001, burst: 1 } },
        { lockout: { on: 'refusal', after: 3, lock: '1h' } },
      ],
    };
    const [a, b] = [createShared(limit), createShared(limit, { isSecondProcess: true })];
    expect((await a.check('k')).verdict).toBe('allow');
    for (const api of [a, b]) expect(await api.check('k')).not.toMatchObject({ reason: 'locked' });
    await a.check('k');
    const locked = { verdict: 'deny', reason: 'locked' };
    for (const api of [a, b]) expect(await api.check('k', 0.1)).toMatchObject(locked);
  });

  test('check: an unavailable backend costs one deadline, and is used again once available', async () => {
    const api = createShared(bucketLimit(0.1, 5), { deadlineMs, onUnavailable: 'deny' });
    const availability: boolean[] = [];
    api.on(
      (event) =>
        event.type === 'availability' &&
        availability.push((event as AvailabilityEvent).isAvailable),
    );
    await untilAvailable(api, 'x');
    availability.length = 0;
    const { fallback } = api.stats();
    const msOfCheck = async (): Promise<number> => {
      const since = performance.now();
      expect((await api.check('x')).verdict).toBe('deny');
      return performance.now() - since;
    };
    await whileUnavailable(async () => {
      expect(await msOfCheck()).toBeGreaterThanOrEqual(deadlineMs - 5);
      const times: number[] = [];
      for (let n = 0; n < 100; n++) times.push(await msOfCheck());
      expect(times.filter((ms) => ms >= deadlineMs - 5).length).toBeLessThan(10); // a stall hits one of them
      const unavailable = { verdict: 'deny', reason: 'unavailable', retryAfterMs: 500 };
      expect(await api.tryAcquire('x')).toMatchObject(unavailable);
      expect(await api.acquire('x', 1, { wait: 20 })).toMatchObject(unavailable);
      expect(api.stats().fallback - fallback).toBe(103);
      expect(availability).toEqual([false]);
    });
    await vi.waitFor(() => expect(availability).toEqual([false, true]));
    await untilAvailable(api, 'x');
  });

  test('id: a repeated call is charged once, at the same time and later', async () => {
    const api = createShared(bucketLimit(0.001, 20));
    const [first, second] = await Promise.all([
      api.check('k', 3, { id: 'x y' }),
      api.check('k', 3, { id: 'x y' }),
    ]);
    expect([first, second]).toEqual([
      { verdict: 'allow', remaining: 17 },
      { verdict: 'allow', remaining: 17 },
    ]);
    expect(await api.check('k', 3, { id: 'x y' })).toEqual(first);
    const permit = await api.tryAcquire('k', 2, { id: 'z' });
    expect(await api.tryAcquire('k', 2, { id: 'z' })).toBe(permit);
    expect((await api.inspect('k'))?.remaining).toBe(15);
    expect((await api.check('k', 16, { id: 'large' })).verdict).toBe('deny');
    await api.giveBack('k', 5);
    expect((await api.check('k', 16, { id: 'large' })).verdict).toBe('allow');
    await expect(api.check('k', 1, { id: '' })).rejects.toThrow('`id`');
    await expect(api.check('k', 1, { partition: 'a' } as never)).rejects.toThrow('partition');
  });

  test('lockout on refusals: a call that waits in all([...]) counts when it is refused in the end, not each time it is checked', async () => {
    const lockout = { on: 'refusal', after: 2, within: '1h', lock: '1h' } as const;
    const guarded = createShared({ all: [bucketLimit(0.001, 3), { lockout }] });
    const failuresOf = async (key: string) => (await guarded.inspect(key))?.failures;
    const total = createShared(bucketLimit(0.001, 1000));
    const open = limiter({ name: 'open', limit: bucketLimit(0.001, 1000) });
    const cases = { 'both remote': all([guarded, total]), 'one local': all([guarded, open]) };
    for (const [key, api] of Object.entries(cases)) {
      const permits = await Promise.all([1, 2, 3].map(() => api.tryAcquire(key)));
      const waiting = api.acquire(key, 1, { wait: '5h' });
      await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
      for (const permit of permits) {
        if (permit.verdict === 'allow') permit.settle();
        for (let trip = 0; trip < 3; trip++) await api.peek(key); // the waiting call is checked again meanwhile
      }
      expect(await failuresOf(key)).toBe(0);
      await api.giveBack(key, 3);
      expect((await waiting).verdict).toBe('allow');
      await api.takeUpTo(key, 3);
      expect(await api.acquire(key, 1, { wait: '1s' })).toMatchObject({ reason: 'too-long' });
      await vi.waitFor(async () => expect(await failuresOf(key)).toBe(1));
    }
  });

  test('change: what was spent stays spent, also for a process that changes later', async () => {
    const [a, b] = [
      createShared(bucketLimit(0.001, 20)),
      createShared(bucketLimit(0.001, 20), { isSecondProcess: true }),
    ];
    const left = () => Promise.all([a, b].map(async (api) => (await api.inspect('k'))?.remaining));
    await a.check('k', 8);
    await a.change(bucketLimit(0.001, 40));
    expect(await left()).toEqual([32, 12]); // each by its own numbers
    await b.change(bucketLimit(0.001, 40));
    expect(await left()).toEqual([32, 32]);
    await Promise.all([a.change(bucketLimit(0.001, 5)), b.change(bucketLimit(0.001, 5))]);
    expect(await left()).toEqual([-3, -3]);
    expect(await a.inspect('other')).toMatchObject({ remaining: 5 });
    await Promise.all([a.change(bucketLimit(0.001, 20)), b.change(bucketLimit(0.001, 20))]);
    expect(await left()).toEqual([12, 12]);
  });

  test('change: a window keeps what counts with another limit, period and number of steps', async () => {
    const windowLimit = (limit: number, per: Duration, steps = 16): Limit => ({
      window: { limit, per, steps },
    });
    const first = windowLimit(20, '1h');
    const [api, other] = [createShared(first), createShared(first, { isSecondProcess: true })];
    const leftOf = async (one: RemoteLimiter) => (await one.inspect('k'))?.remaining;
    await api.check('k', 8);
    await api.change(windowLimit(10, '1h'));
    expect(await leftOf(api)).toBe(2);
    await api.change(windowLimit(30, '2h'));
    expect(await leftOf(api)).toBe(22);
    await api.check('k', 2);
    expect(await leftOf(other)).toBe(12); // counts by the old window, beside the new one, until it changes too
    await api.change(windowLimit(15, '90m', 4));
    expect(await leftOf(api)).toBe(5);
    // There and back: what was counted meanwhile stays counted.
    await api.change(first);
    expect(await leftOf(api)).toBe(10);
    expect(await leftOf(other)).toBe(10);
  });

  test('change: a shorter window admits no more than its limit in any of its periods', async () => {
    const [most, perMs] = [6, 400];
    const api = createShared({ window: { limit: most, per: 4 * perMs } });
    const log: LoggedCall[] = [];
    const drain = async (): Promise<void> => {
      for (;;) {
        const permit = await api.tryAcquire('k');
        if (permit.verdict !== 'allow') return;
        log.push({ at: permit.dueAt, units: 1 });
      }
    };
    await drain();
    await api.change({ window: { limit: most, per: perMs, steps: 5 } });
    await vi.waitFor(async () => {
      await drain();
      expect(log.length).toBeGreaterThanOrEqual(3 * most);
    }, 20_000);
    expect(mostInAnyWindow(log, perMs)).toBeLessThanOrEqual(most);
  });

  test('change: a key that is idle until then has refilled at the old rate, and later does at the new one', async () => {
    const [slow, fast] = [bucketLimit(1e-6, 20), bucketLimit(8, 20)];
    const api = createShared(slow);
    await api.check('k', 20);
    await sleep(500);
    const since = performance.now();
    await api.change(fast);
    const remaining = (await api.inspect('k'))?.remaining ?? Number.NaN;
    // With the idle time at the new rate it would be 4 more; one for the clock error of a server.
    expect(remaining).toBeLessThanOrEqual(((performance.now() - since) / 1000) * 8 + 1);
    await api.takeUpTo('k', Infinity);
    await api.change(slow);
    const left = (await api.inspect('k'))?.remaining ?? Number.NaN;
    await sleep(2600); // at the old rate it would be as new, and forgotten
    expect((await api.inspect('k'))?.remaining).toBe(left);
    expect(left).toBeLessThan(20);
  });

  test('change: the next permit of a spacing is due the new interval after the last, once for all processes', async () => {
    const every = (ms: number): Limit => ({ spacing: { every: ms } });
    const [a, b] = [createShared(every(60_000)), createShared(every(60_000))];
    const sentAt = performance.now();
    await a.check('k');
    const grantedBy = performance.now();
    const expectDueAfter = async (api: RemoteLimiter, ms: number): Promise<void> => {
      const askedAt = performance.now();
      const decision = await api.check('k');
      const retryMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
      expect(retryMs + performance.now() - sentAt).toBeGreaterThan(ms - 100);
      // etcd: with the start tolerance, and the time in which a permit may start
      expect(retryMs + askedAt - grantedBy).toBeLessThan(ms * 1.005 + 5000);
    };
    for (const ms of [600_000, 30_000]) {
      await a.change(every(ms));
      await b.change(every(ms));
      await expectDueAfter(a, ms);
      await expectDueAfter(b, ms);
    }
  });

  test('change: different changes of a spacing from one rule end with the last interval after the last permit', async () => {
    const every = (hours: number): Limit => ({ spacing: { every: `${hours}h` } });
    const pair = (hours: number): Limit => ({ all: [bucketLimit(0.001, 50), every(hours)] });
    for (const limitOf of [every, pair]) {
      const processes = [1, 2, 3].map(() => createShared(limitOf(2)));
      const [a, b, c] = processes;
      await a.check('k');
      const hoursOf = async (api: RemoteLimiter): Promise<number> => {
        const decision = await api.peek('k');
        return decision?.verdict === 'deny' ? Math.round(decision.retryAfterMs / 3_600_000) : 0;
      };
      await a.change(limitOf(4));
      await b.change(limitOf(6));
      expect(await Promise.all(processes.map(hoursOf))).toEqual([4, 6, 2]); // each by its own numbers
      await c.change(limitOf(1));
      expect(await hoursOf(c)).toBe(1);
      await a.change(limitOf(5));
      await Promise.all([b, c].map((api) => api.change(limitOf(5))));
      expect(await Promise.all(processes.map(hoursOf))).toEqual([5, 5, 5]);
    }
  });

  test('change: a waiting call that fits now is granted, and one that never will is refused', async () => {
    const api = createShared(bucketLimit(0.001, 10));
    await api.check('fits', 10);
    await api.check('never', 10);
    const waiting = [api.acquire('fits', 1, { wait: 1e8 }), api.acquire('never', 9, { wait: 1e8 })];
    await vi.waitFor(() => expect(api.stats().waiting).toBe(2));
    await api.change(bucketLimit(100, 8));
    expect(await waiting[1]).toMatchObject({ verdict: 'deny', reason: 'never' });
    expect(await waiting[0]).toMatchObject({ verdict: 'allow' });
  });

  test('change: a limit of another kind, or an unavailable backend, changes nothing', async () => {
    const limit = bucketLimit(0.001, 10);
    const other = createShared(limit, { isSecondProcess: true });
    const api = createShared(limit, { deadlineMs, onUnavailable: 'deny' });
    const events: string[] = [];
    api.on(({ type }) => events.push(type));
    await other.check('k', 4);
    await untilAvailable(api, 'k');
    const error = await api.change({ spacing: { every: 10 } }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'CONFIG', field: 'limit' });
    expect(String(error)).toContain('to be a bucket, as the limit is now');
    await whileUnavailable(async () => {
      await api.check('k');
      const rejected = api.change(bucketLimit(0.001, 20)).catch((thrown: unknown) => thrown);
      expect(await rejected).toMatchObject({ code: 'UNAVAILABLE' });
    });
    expect((await other.inspect('k'))?.remaining).toBeLessThanOrEqual(6);
    expect(events).not.toContain('reconfigured');
    await vi.waitFor(() => api.change(bucketLimit(0.001, 20)));
    expect(events.at(-1)).toBe('reconfigured');
  });
}

/** A short deadline may be missed before the backend is used at all. */
async function untilAvailable(api: RemoteLimiter, key: string): Promise<void> {
  await vi.waitFor(async () => {
    await api.check(key, 0);
    expect(api.stats().isAvailable).toBe(true);
  });
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
