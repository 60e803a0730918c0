/**
 * The contract of a concurrency limit that is counted elsewhere: calls in flight of all processes, with weights.
 */

import { expect, test, vi } from 'vitest';
import { seededRandom } from '../../src/core/random.ts';
import type { RemoteLimiter } from '../../src/limiter/async-limiter.ts';
import { all } from '../../src/limiter/composite-limiter.ts';
import { Permit } from '../../src/limiter/permit.ts';
import { bucketLimit, type RemoteHarness, UNHURRIED } from './remote-limiter-contract.ts';
import { OUTAGE_DEADLINE_MS as deadlineMs } from './wait-timeout.ts';

/** How long a call waits where the test expects that it is granted. */
const WAIT = { wait: '20s' } as const;

export async function permitOf(acquiring: ReturnType<RemoteLimiter['acquire']>): Promise<Permit> {
  const permit = await acquiring;
  if (!(permit instanceof Permit)) throw new Error(`refused: ${permit.reason}`);
  return permit;
}

/** Counts units in flight as their holders see them: the oracle. */
class InFlightOracle {
  inFlight = 0;
  peak = 0;
  granted = 0;

  begin(units: number): void {
    this.inFlight += units;
    this.granted += units;
    this.peak = Math.max(this.peak, this.inFlight);
  }

  end(units: number): void {
    this.inFlight -= units;
  }
}

export function remoteSemaphoreContract(harness: RemoteHarness): void {
  const { createShared, whileUnavailable } = harness;
  const pairOf = (concurrency: number, options = {}): readonly [RemoteLimiter, RemoteLimiter] => {
    const create = (isSecondProcess: boolean) =>
      createShared({ concurrency }, { ...UNHURRIED, ...options, isSecondProcess });
    return [create(false), create(true)];
  };
  const inFlightOf = async (api: RemoteLimiter, key = 'sink') => (await api.inspect(key))?.inFlight;
  /** A release of another process may be on its way. */
  const untilInFlight = (api: RemoteLimiter, units: number): Promise<void> =>
    vi.waitFor(async () => expect(await inFlightOf(api)).toBe(units), 10_000);

  test('concurrency: two processes share the calls in flight, with weights', async () => {
    const [a, b] = pairOf(5);
    const first = await permitOf(a.tryAcquire('sink', 3));
    expect(first.remaining).toBe(2);
    const second = await permitOf(b.tryAcquire('sink'));
    expect(second.remaining).toBe(1);
    expect(await a.tryAcquire('sink', 2)).toMatchObject({ verdict: 'deny', retryAfterMs: 0 });
    expect(await b.inspect('sink')).toMatchObject({ inFlight: 4, limit: 5, remaining: 1 });
    expect((await b.tryAcquire('other', 5)).verdict).toBe('allow');
    first.settle();
    await untilInFlight(b, 1);
    expect((await b.tryAcquire('sink', 4)).verdict).toBe('allow');
  });

  test('concurrency: peek and a cost of 0 take nothing, and a cost above the limit never fits', async () => {
    const [a, b] = pairOf(2);
    expect(await a.peek('sink')).toEqual({ verdict: 'allow', remaining: 1 });
    expect(await a.check('sink', 0)).toEqual({ verdict: 'allow', remaining: 2 });
    const permit = await permitOf(b.acquire('sink', 2));
    expect(await a.peek('sink')).toEqual({ verdict: 'deny', retryAfterMs: 0 });
    expect(await a.peek('sink', 3)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    expect(await a.check('sink', 3, { willSettle: true })).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
    });
    expect(await a.acquire('sink', 3, WAIT)).toMatchObject({ verdict: 'deny', reason: 'never' });
    permit.settle();
    await untilInFlight(a, 0);
  });

  test('concurrency: acquire waits until a call settles, of its own process or another', async () => {
    const [a, b] = pairOf(2);
    const held = [await permitOf(a.acquire('sink')), await permitOf(b.acquire('sink'))];
    const waiting = [a.acquire('sink', 1, WAIT), a.acquire('sink', 1, WAIT)];
    await vi.waitFor(() => expect(a.stats().waiting).toBe(2));
    for (const permit of held) permit.settle();
    for (const permit of await Promise.all(waiting.map(permitOf))) permit.settle();
    await untilInFlight(b, 0);
  });

  test('concurrency: a waiter that gives up takes nothing', async () => {
    const [a, b] = pairOf(1);
    const held = await permitOf(b.acquire('sink'));
    const abort = new AbortController();
    const leaving = a.acquire('sink', 1, { signal: abort.signal, ...WAIT });
    const late = a.acquire('sink', 1, { wait: 40 });
    expect(await late).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    abort.abort(new Error('enough'));
    await expect(leaving).rejects.toThrow('enough');
    held.settle();
    await permitOf(b.acquire('sink', 1, WAIT));
  });

  test('concurrency: takeUpTo takes what is free, and giveBack returns so many units', async () => {
    const [a, b] = pairOf(5);
    await permitOf(b.acquire('sink'));
    expect(await a.takeUpTo('sink', 3)).toBe(3);
    expect(await b.takeUpTo('sink', 9)).toBe(1);
    expect(await b.takeUpTo('sink', 9)).toBe(0);
    await a.giveBack('sink', 1);
    await untilInFlight(b, 4);
    await a.settle('sink', { cost: 2 });
    await untilInFlight(b, 2);
    await a.giveBack('sink', 5); // it has none left
    await untilInFlight(b, 2);
  });

  test('concurrency: a settlement by key ends no call that has a permit', async () => {
    const [a, b] = pairOf(4);
    const permit = await permitOf(a.tryAcquire('sink', 2));
    await a.check('sink', 1, { willSettle: true });
    await a.settle('sink');
    await a.settle('sink');
    await untilInFlight(b, 2);
    permit.settle();
    await untilInFlight(b, 0);
  });

  test('concurrency: within all, nothing stays in flight if another limit refuses', async () => {
    const [a, b] = pairOf(3);
    const rate = createShared(bucketLimit(0.001, 2), UNHURRIED);
    const both = all([rate, a]);
    const permits = [await permitOf(both.tryAcquire('sink', 2))];
    expect((await both.tryAcquire('sink')).verdict).toBe('deny');
    expect(await inFlightOf(b)).toBe(2);
    expect((await rate.inspect('sink'))?.remaining).toBeLessThan(1);
    for (const permit of permits) permit.settle();
    await untilInFlight(b, 0);
    await both.check('k', 1, { willSettle: true });
    expect(await inFlightOf(b, 'k')).toBe(1);
    await both.settle('k');
    await vi.waitFor(async () => expect(await inFlightOf(b, 'k')).toBe(0));
  });

  test('concurrency: the fencing token grows with every grant of a key', async () => {
    const [a, b] = pairOf(3);
    const tokens: number[] = [];
    for (const api of [a, b, a]) {
      const permits = await Promise.all(
        [1, 2, 3].map(() => permitOf(api.acquire('sink', 1, WAIT))),
      );
      tokens.push(...permits.map(({ fencingToken = Number.NaN }) => fencingToken));
      for (const permit of permits) permit.settle();
      await untilInFlight(b, 0);
    }
    for (const [n, token] of tokens.slice(1).entries()) expect(token).toBeGreaterThan(tokens[n]);
  });

  test('concurrency: calls stay in flight when the limit changes; a waiting one that fits is granted', async () => {
    const [a, b] = pairOf(3);
    const permits = [await permitOf(a.acquire('sink', 2)), await permitOf(b.acquire('sink'))];
    await a.change({ concurrency: 2 });
    expect((await a.tryAcquire('sink')).verdict).toBe('deny');
    const waiting = a.acquire('sink', 1, WAIT);
    await vi.waitFor(() => expect(a.stats().waiting).toBe(1));
    await a.change({ concurrency: 4 });
    permits.push(await permitOf(waiting));
    expect(await a.inspect('sink')).toMatchObject({ inFlight: 4, limit: 4 });
    for (const permit of permits) permit.settle();
    await untilInFlight(b, 0);
  });

  test('concurrency: a limiter that is closed frees its places, and its permits abort', async () => {
    const [a, b] = pairOf(2);
    const { signal } = await permitOf(a.acquire('sink', 2));
    const waiting = b.acquire('sink', 2, WAIT);
    await a.close();
    expect(signal.aborted).toBe(true);
    await permitOf(waiting);
  });

  test('concurrency: a call that settles during an outage frees its place afterwards; one that runs keeps it', async () => {
    const [b] = pairOf(2);
    const [a] = pairOf(2, { deadlineMs, onUnavailable: 'deny' });
    const [settling, running] = [
      await permitOf(a.acquire('sink')),
      await permitOf(a.acquire('sink')),
    ];
    await untilInFlight(b, 2);
    await whileUnavailable(async () => {
      expect((await a.tryAcquire('sink')).verdict).toBe('deny');
      settling.settle();
    });
    await vi.waitFor(async () => expect(await inFlightOf(b)).toBe(1), 8000);
    expect(running.signal.aborted).toBe(false);
    running.settle();
    await vi.waitFor(async () => expect(await inFlightOf(b)).toBe(0), 8000);
  });

  test('concurrency: random calls of several clients never exceed the limit, and an oracle agrees at the end', async () => {
    const most = 7;
    const random = seededRandom(7);
    const upTo = (n: number): number => 1 + Math.floor(random() * n);
    const apis = [0, 1, 2].flatMap(() => pairOf(most));
    const oracle = new InFlightOracle();
    const counts = { refused: 0 };
    const breathe = () => new Promise((later) => setTimeout(later, 3 * random()));
    const hold = async (permit: Permit, units: number): Promise<void> => {
      oracle.begin(units);
      await breathe();
      oracle.end(units);
      permit.settle(random() < 0.3 ? { outcome: 'ignored' } : {});
    };
    const act = async (api: RemoteLimiter): Promise<void> => {
      const units = upTo(3);
      if (random() < 0.2) {
        const taken = await api.takeUpTo('sink', units);
        oracle.begin(taken);
        await breathe();
        oracle.end(taken);
        if (taken > 0) await api.giveBack('sink', taken);
        return;
      }
      const waits = random() < 0.5;
      const result = await (waits
        ? api.acquire('sink', units, { wait: upTo(100) })
        : api.tryAcquire('sink', units));
      if (result instanceof Permit) await hold(result, units);
      else counts.refused++;
    };
    const client = async (api: RemoteLimiter): Promise<void> => {
      for (let n = 0; n < 20; n++) await act(api);
    };
    await Promise.all(apis.flatMap((api) => [client(api), client(api)]));
    expect(oracle.peak).toBeLessThanOrEqual(most);
    expect(oracle.granted).toBeGreaterThan(50); // otherwise the property proves little
    expect(counts.refused).toBeGreaterThan(5);
    expect(oracle.inFlight).toBe(0);
    // The request of a waiter that expired may be granted after it; its units are then given back.
    await vi.waitFor(async () => {
      const taken = await apis[5].takeUpTo('sink', 99);
      if (taken < most) await apis[5].giveBack('sink', taken);
      expect(taken).toBe(most);
    }, 10_000);
  });
}
