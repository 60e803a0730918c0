import { describe, expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import type { RetryOptions } from './retry.ts';
import { RetryBudget } from './retry-budget.ts';
import { throttle } from './throttle.ts';

const CAPACITY = 100; // calls a second
const LOAD = 0.7; // of the capacity
const TIMEOUT_MS = 1000;
/** Calls that the server queues: half a second more than its clients wait. */
const MAX_QUEUE = 150;
const OUTAGE = { from: 20, until: 30 };

class TimeoutError extends Error {
  override readonly name = 'TimeoutError';
}

/**
 * Clients with a time-out call a server with a queue; it serves nothing in an outage of ten seconds. The server does not
 * know which of its clients have given up, as most do not.
 */
async function simulateOutage(retry: RetryOptions) {
  const clock = new VirtualClock();
  const random = seededRandom(3);
  const isOut = (): boolean => {
    const second = clock.now() / 1000;
    return second >= OUTAGE.from && second < OUTAGE.until;
  };
  const queue: (() => void)[] = [];
  const serve = (): void => {
    if (!isOut()) queue.shift()?.();
    clock.wakeAt(clock.now() + 1000 / CAPACITY, serve);
  };
  serve();
  let calls = 0;
  const attempts: number[] = [];
  const good: number[] = [];
  const request = (): Promise<'ok' | 'busy'> =>
    new Promise((resolve, reject) => {
      const second = Math.floor(clock.now() / 1000);
      attempts[second] = (attempts[second] ?? 0) + 1;
      if (queue.length >= MAX_QUEUE) return resolve('busy');
      const cancel = clock.wakeAt(clock.now() + TIMEOUT_MS, () => reject(new TimeoutError()));
      queue.push(() => {
        cancel();
        resolve('ok');
      });
    });
  const api = limiter({ limit: { bucket: { rate: 1e6 } }, clock, random });
  const call = throttle(request, {
    limiter: api,
    retry,
    outcome: (error, result) => (error ? 'timeout' : (result ?? 'ok')),
  });
  const start = (): void => {
    calls++;
    call().then(
      (result) => {
        const second = Math.floor(clock.now() / 1000);
        if (result === 'ok') good[second] = (good[second] ?? 0) + 1;
      },
      () => {},
    );
    const gapMs = (-Math.log(1 - random()) * 1000) / (CAPACITY * LOAD);
    clock.wakeAt(clock.now() + gapMs, start);
  };
  start();
  await clock.advanceAsync(90_000);
  const meanOf = (counts: readonly number[], from: number, until: number): number => {
    let sum = 0;
    for (let second = from; second < until; second++) sum += counts[second] ?? 0;
    return sum / (until - from);
  };
  const sent = attempts.reduce((sum, count) => sum + (count ?? 0), 0);
  const { deniedRetries } = api.stats();
  return { amplification: sent / calls, attempts, good, meanOf, deniedRetries };
}

describe('retry budget', () => {
  test('retry budget: after an outage goodput returns within seconds, at most 1.1 attempts a call', async () => {
    const { amplification, attempts, good, meanOf, deniedRetries } = await simulateOutage({});
    expect(meanOf(good, 5, OUTAGE.from)).toBeGreaterThan(0.95 * LOAD * CAPACITY);
    expect(amplification).toBeCloseTo(1.02, 2); // as docs/reference/library.md says
    const outageLoad = meanOf(attempts, OUTAGE.from + 2, OUTAGE.until);
    expect(outageLoad).toBeLessThan(1.2 * LOAD * CAPACITY);
    expect(meanOf(good, OUTAGE.until + 5, OUTAGE.until + 10)).toBeGreaterThan(
      0.95 * LOAD * CAPACITY,
    );
    expect(deniedRetries).toBeGreaterThan(100);
  });

  test('retry budget: without it the overload outlasts the outage', async () => {
    const { amplification, good, meanOf, deniedRetries } = await simulateOutage({ budget: false });
    expect(meanOf(good, 5, OUTAGE.from)).toBeGreaterThan(0.95 * LOAD * CAPACITY);
    expect(amplification).toBeCloseTo(3.27, 2);
    expect(meanOf(good, 80, 90)).toBeLessThan(0.5 * LOAD * CAPACITY); // a minute after it
    expect(deniedRetries).toBe(0);
  });

  test('retry budget: used up, the call ends at once with its own error; event and counter tell', async () => {
    const clock = new VirtualClock();
    const api = limiter({ name: 'api', limit: { bucket: { rate: 1000 } }, clock });
    const events: unknown[] = [];
    api.on((event) => event.type === 'retry-denied' && events.push(event));
    let attempts = 0;
    const call = throttle(
      async () => {
        attempts++;
        throw new TimeoutError('mine');
      },
      { limiter: api, key: () => 'alice', retry: { maxRetries: 1, budget: 0, minPerSecond: 0.1 } },
    );
    const first = call().catch((error: Error) => error.message);
    await clock.advanceAsync(1000);
    expect([await first, attempts]).toEqual(['mine', 2]);
    const second = call();
    await expect(second).rejects.toThrow('mine'); // without the clock: no back-off
    expect(attempts).toBe(3);
    expect(events).toMatchObject([
      { limit: 'api', key: 'alice', outcome: 'timeout', type: 'retry-denied' },
    ]);
    expect(api.stats().deniedRetries).toBe(1);
    await clock.advanceAsync(10_000); // the retry has left the period
    const third = call().catch(() => {});
    await clock.advanceAsync(1000);
    await third;
    expect(attempts).toBe(5);
  });

  test('retry budget: in any ten seconds, retries are at most the share or the minimum', () => {
    for (let seed = 1; seed <= 20; seed++) {
      const random = seededRandom(seed);
      const clock = new VirtualClock(seed * -7777);
      const [share, minPerSecond] = [random(), random() * 3];
      const budget = new RetryBudget(clock, share, minPerSecond);
      const log: { at: number; isRetry: boolean }[] = [];
      for (let n = 0; n < 2000; n++) {
        clock.advance(Math.floor(random() * (random() < 0.01 ? 15_000 : 60)));
        const isRetry = random() < 0.6;
        if (!isRetry) budget.recordCall();
        else if (!budget.tryRetry()) continue;
        log.push({ at: clock.now(), isRetry });
        if (!isRetry) continue;
        // The period is the current second and the nine before it.
        const since = (Math.floor(clock.now() / 1000) - 9) * 1000;
        const recent = log.filter(({ at }) => at >= since);
        const retries = recent.filter((one) => one.isRetry).length;
        const calls = recent.length - retries;
        expect(retries).toBeLessThanOrEqual(Math.max(share * calls, minPerSecond * 10));
      }
    }
  });

  test('retry budget: refuses invalid options by name', () => {
    const make = (retry: unknown) => () =>
      throttle(async () => {}, { limit: { bucket: { rate: 1 } }, retry: retry as RetryOptions });
    expect(make({ budget: 1.5 })).toThrow('retry.budget');
    expect(make({ budget: true })).toThrow('retry.budget');
    expect(make({ minPerSecond: -1 })).toThrow('retry.minPerSecond');
    expect(make({ budget: false })).not.toThrow();
  });
});
