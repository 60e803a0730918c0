/** The load shedder on a simulated event loop: handlers take its time, and timers fire between its turns. */

import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { LoadShedder } from './load-shedder.ts';

interface Scenario {
  /** Requests per second, at random instants. */
  readonly rate: number | ((second: number) => number);
  readonly seconds?: number;
  readonly computeMs?: (second: number) => number;
  /** Awaited before the handler computes. Without it the handler computes at once. */
  readonly awaitMs?: number;
  /** Instants at which the whole process stands still, and for how long. */
  readonly pauses?: readonly (readonly [at: number, ms: number])[];
  /** Other work in each turn of the event loop. */
  readonly otherMs?: number;
}

const REFUSAL_MS = 0.15;
const USEFUL_MS = 500;

/** Runs handlers behind a shedder with a target of 100 ms. The first two seconds are not counted. */
function run({
  rate,
  seconds = 20,
  computeMs = () => 5,
  awaitMs,
  pauses = [],
  otherMs = 0,
}: Scenario) {
  const random = seededRandom(1);
  const arrivals: number[] = [];
  const rateAt = (at: number) => (typeof rate === 'number' ? rate : rate(at / 1000));
  for (let at = 0; at < seconds * 1000; at += (-Math.log(1 - random()) * 1000) / rateAt(at))
    arrivals.push(at);

  let [now, idleMs] = [0, 0];
  const timers: { at: number; callback: () => void }[] = [];
  const setTimer = (at: number, callback: () => void) => {
    timers.push({ at, callback });
    timers.sort((a, b) => a.at - b.at);
    return () => {};
  };
  const shedder = new LoadShedder({ now: () => now, wakeAt: setTimer }, 100, () => idleMs);
  const served: { at: number; ms: number }[] = [];
  const shed: number[] = [];
  const compute = (arrivedAt: number) => {
    now += computeMs(now / 1000);
    served.push({ at: arrivedAt, ms: now - arrivedAt });
  };
  const left = [...pauses];
  let [next, turns] = [0, 0];
  while (next < arrivals.length && turns++ < 1_000_000) {
    for (const turnAt = now; timers.length > 0 && timers[0].at <= turnAt; )
      timers.shift()?.callback();
    while (left.length > 0 && left[0][0] <= now) {
      const [, ms] = left.shift() ?? [0, 0];
      if (arrivals[next] > now) idleMs += ms; // it waits for events, and is woken late
      now += ms;
    }
    now += otherMs;
    if (arrivals[next] > now) {
      const wakeAt = Math.min(arrivals[next], timers[0]?.at ?? Infinity);
      if (otherMs > 0 || wakeAt <= now) continue;
      idleMs += wakeAt - now;
      now = wakeAt;
      continue;
    }
    for (const polledAt = now; arrivals[next] <= polledAt; next++) {
      const arrivedAt = arrivals[next];
      if (!shedder.admit()) {
        shed.push(arrivedAt);
        now += REFUSAL_MS;
      } else if (awaitMs === undefined) compute(arrivedAt);
      else setTimer(now + awaitMs, () => compute(arrivedAt));
    }
  }
  const counted = served.filter(({ at }) => at >= 2000);
  const times = counted.map(({ ms }) => ms).sort((a, b) => a - b);
  return {
    goodput: counted.filter(({ ms }) => ms <= USEFUL_MS).length / (seconds - 2),
    p99: times[Math.floor(times.length * 0.99)],
    shed,
    shedShare: shed.length / arrivals.length,
    isIdleAfter: () => {
      for (let n = 0; n < 1000 && timers.length > 0; n++) {
        const timer = timers.shift();
        now = Math.max(now, timer?.at ?? 0);
        timer?.callback();
      }
      return timers.length === 0 && shedder.delayMs === 0;
    },
  };
}

describe('load shedder', () => {
  test.each([
    ['computes', {}],
    ['awaits, then computes', { awaitMs: 20 }],
  ])('three times the capacity, handler %s: serves what it can, on time', (_, handler) => {
    const { goodput, p99, shedShare } = run({ rate: 600, ...handler }); // capacity: 200/s
    expect(goodput).toBeGreaterThan(160);
    expect(p99).toBeLessThan(350);
    expect(shedShare).toBeLessThan(0.72);
  });

  test('ten times the capacity: refusals take a third of the time, the rest is used', () => {
    const { goodput, p99 } = run({ rate: 2000 });
    expect(goodput).toBeGreaterThan(130); // of 140 that are left
    expect(p99).toBeLessThan(250);
  });

  test.each([
    ['70 % of the capacity', { rate: 140 }],
    ['90 % of the capacity', { rate: 180 }],
    ['a pause of 50 ms every 150 ms', { rate: 100, pauses: pausesEvery(150, 50) }],
    ['a pause of 300 ms every second', { rate: 50, pauses: pausesEvery(1000, 300) }],
    ['half of the CPU taken by others', { rate: 40, pauses: pausesEvery(240, 120) }],
    ['a process suspended for a minute', { rate: 1, pauses: [[5000, 60_000]] as const }],
  ])('%s: sheds nothing', (_, scenario) => {
    expect(run(scenario).shed).toEqual([]);
  });

  test('overload that ends: admits every request within two seconds', () => {
    const { shed } = run({ rate: (second) => (second < 5 ? 600 : 100) });
    expect(shed.length).toBeGreaterThan(1000);
    expect(shed.at(-1)).toBeLessThan(7000);
  });

  test('handlers that become four times as slow: the rate follows', () => {
    const { goodput, p99 } = run({ rate: 600, computeMs: (second) => (second < 10 ? 5 : 20) });
    expect(goodput).toBeGreaterThan(100); // of 8 s × 188 and 10 s × 46
    expect(p99).toBeLessThan(600);
  });

  test('delay with other causes than requests: goes on serving some of them', () => {
    const { goodput } = run({ rate: 20, otherMs: 150 });
    expect(goodput).toBeGreaterThan(4);
  });

  test('no requests: stops its timer and reports no delay', () => {
    expect(run({ rate: 600, seconds: 3 }).isIdleAfter()).toBe(true);
  });
});

function pausesEvery(intervalMs: number, ms: number): [number, number][] {
  return Array.from({ length: Math.floor(20_000 / intervalMs) }, (_, n) => [n * intervalMs, ms]);
}
