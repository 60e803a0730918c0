/**
 * What holds for a limit that somebody else decides, whoever that is: the same stories for each of them.
 */

import { expect, test, vi } from 'vitest';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import type { AvailabilityEvent } from '../../src/limiter/events.ts';
import type { Limit } from '../../src/policies/limit.ts';

/** Where the stories happen: a fresh decider for each, and the limiters that share it. */
export interface RemoteHarness {
  /** A limiter called `api`, of this process or of the other one; it is closed when the story is over. */
  createShared(limit: Limit, options?: RemoteHarnessOptions): RemoteLimiter;
  /** Nobody decides anything while this runs. */
  whileUnavailable(act: () => Promise<void>): Promise<void>;
  /** A deadline that is kept on a bad day. */
  readonly deadlineMs: number;
}

export interface RemoteHarnessOptions {
  readonly isSecondProcess?: boolean;
  readonly deadlineMs?: number;
  readonly onUnavailable?: 'deny';
  readonly queue?: { readonly max: number };
}

export const bucketLimit = (rate: number, burst: number): Limit => ({ bucket: { rate, burst } });

export function remoteLimiterContract({
  createShared,
  whileUnavailable,
  deadlineMs,
}: RemoteHarness): void {
  test('two processes have one count', async () => {
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

  test('what was not used comes back; a batch takes what there is', async () => {
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

  test('places are reserved ahead, counted, and given back', async () => {
    const api = createShared({ spacing: { every: '10s', reserve: 2 } });
    expect((await api.check('token')).verdict).toBe('allow');
    const first = await api.check('token');
    const second = await api.check('token');
    expect([first.verdict, second.verdict]).toEqual(['wait', 'wait']);
    expect((await api.inspect('token'))?.reserved).toBe(2);
    expect((await api.check('token')).verdict).toBe('deny');
  });

  test('those who wait have their turn, in both processes, and never too close', async () => {
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

  test('those who reserved ahead have their turn, too', async () => {
    const api = createShared({ spacing: { every: 20, reserve: 50 } });
    const since = performance.now();
    const entries = await Promise.all(Array.from({ length: 10 }, () => api.acquire('token')));
    expect(entries.every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(performance.now() - since).toBeGreaterThanOrEqual(9 * 20);
  });

  test('patience ends, and an abort gives the place back', async () => {
    const api = createShared({ spacing: { every: '1h', reserve: 1 } });
    await api.check('token');
    expect(await api.acquire('token', 1, { wait: 1000 })).toMatchObject({
      verdict: 'deny',
      reason: 'too-long',
    });
    const giveUp = new AbortController();
    const waiting = api.acquire('token', 1, { signal: giveUp.signal });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(1));
    giveUp.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    expect(api.stats()).toMatchObject({ waiting: 0, cancelled: 1 });
    await vi.waitFor(async () => expect((await api.inspect('token'))?.reserved).toBe(0));
  });

  test('no more wait than there is room for, over all keys; whoever gets in at once needs none', async () => {
    for (const limit of [{ every: '1h' }, { every: 3000, reserve: 1 }]) {
      const api = createShared({ spacing: limit }, { queue: { max: 2 } });
      const keys = ['a', 'b', 'c', 'd'].map((key) => `${key} ${limit.every}`);
      const first = await Promise.all(keys.map((key) => api.acquire(key)));
      expect(first.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'allow', 'allow']);
      const giveUp = new AbortController();
      const rest = keys.map((key) => api.acquire(key, 1, { signal: giveUp.signal }));
      const ends = Promise.allSettled(rest);
      await vi.waitFor(() => expect(api.stats()).toMatchObject({ waiting: 2, denied: 2 }));
      expect(await api.acquire(keys[0])).toMatchObject({ verdict: 'deny', reason: 'queue-full' });
      giveUp.abort(new Error('enough'));
      await ends;
      expect(api.stats().waiting).toBe(0);
    }
  });

  test('who cannot wait at all is told so at once, even behind a line', async () => {
    const api = createShared({ spacing: { every: 2000 } });
    await api.acquire('token');
    const waiting = api.acquire('token');
    await api.inspect('token');
    const since = performance.now();
    expect(await api.acquire('token', 1, { wait: 0 })).toMatchObject({
      verdict: 'deny',
      reason: 'too-long',
    });
    expect(performance.now() - since).toBeLessThan(500);
    expect((await waiting).verdict).toBe('allow');
  });

  test('those in line are back as soon as whoever decides is', async () => {
    const api = createShared({ spacing: { every: 1 } }, { deadlineMs });
    await api.check('token');
    let waiting: Promise<unknown> = Promise.resolve();
    await whileUnavailable(async () => {
      waiting = api.acquire('token');
      await vi.waitFor(() => expect(api.stats().isAvailable).toBe(false));
    });
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { interval: 1 });
    const back = performance.now();
    expect(await waiting).toMatchObject({ verdict: 'allow' });
    expect(performance.now() - back).toBeLessThan(200);
  });

  test('a decider that stands still costs one deadline, and is taken back when it goes on', async () => {
    const api = createShared(bucketLimit(0.1, 5), { deadlineMs, onUnavailable: 'deny' });
    const reached: boolean[] = [];
    api.on(
      (event) =>
        event.type === 'availability' && reached.push((event as AvailabilityEvent).isAvailable),
    );
    await api.check('x');
    await whileUnavailable(async () => {
      const first = performance.now();
      expect((await api.check('x')).verdict).toBe('deny');
      expect(performance.now() - first).toBeGreaterThanOrEqual(deadlineMs - 5);
      const then = performance.now();
      for (let n = 0; n < 100; n++) expect((await api.check('x')).verdict).toBe('deny');
      expect(performance.now() - then).toBeLessThan(deadlineMs - 5);
    });
    const back = performance.now();
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), { timeout: 3000 });
    expect(performance.now() - back).toBeLessThan(1500);
    expect((await api.check('x')).verdict).toBe('allow');
    expect(reached).toEqual([false, true]);
    expect(api.stats().fallback).toBe(101);
  });
}
