import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  flowAt,
  formatRun,
  PATTERNS,
  type Recovery,
  simulateTchannel,
  TRAFFIC_SHAPES,
} from './tchannel.ts';

const RATE = { recoverRate: 3 };
const VALUE = { recoverValue: 200 };

const bothRuns = (pattern: keyof typeof PATTERNS): string =>
  [RATE, VALUE]
    .flatMap((recovery) => formatRun(simulateTchannel(PATTERNS[pattern], recovery)))
    .map((line) => `${line}\n`)
    .join('');

describe('TChannel simulation', () => {
  for (const pattern of ['steady', 'flappy'] as const) {
    test(`prints the original's ${pattern} run byte for byte`, () => {
      const original = readFileSync(`test/vectors/tchannel-${pattern}.txt`, 'utf8');
      expect(bothRuns(pattern)).toBe(original);
    });
  }

  // The recurrence of the original, computed independently: demand grows while the limit recovers.
  test('linear_grow: demand grows every second, during recovery too', () => {
    const lines = formatRun(simulateTchannel(PATTERNS.linear_grow, RATE));
    expect(lines).toEqual([
      'started with recover_rate: 3',
      'start rps=100 (linear_grow) throttled=0 busy=0 (linear_grow) limit=9999999',
      '    --- time=1 rps=200 throttled=0 busy=100 limit=9999999', // ×4 / 2^20: 38.1
      '    --- time=2 rps=38 throttled=262 busy=38 limit=38', //      again: 0.000145
      '    --- time=3 rps=0 throttled=400 busy=0 limit=0', //         nothing sent, no busy reply
      '    --- time=4 rps=0 throttled=500 busy=0 limit=0',
      '    --- time=5 rps=0 throttled=600 busy=0 limit=0',
      '    --- time=6 rps=0 throttled=700 busy=0 limit=0',
      '    --- time=7 rps=0 throttled=800 busy=0 limit=0',
      '    --- time=8 rps=0 throttled=900 busy=0 limit=0',
      '    --- time=9 rps=0 throttled=1000 busy=0 limit=0',
      '    ++++ recovering',
      '    +++ time=11 rps=2 throttled=1197 busy=0 limit=2', // demand 1200, 2.38 sent
      '    +++ time=12 rps=9 throttled=1290 busy=0 limit=9',
      '    +++ time=13 rps=38 throttled=1361 busy=0 limit=38',
      '    +++ time=14 rps=152 throttled=1347 busy=0 limit=152',
      '    +++ time=15 rps=610 throttled=989 busy=0 limit=610',
      '    +++ time=16 rps=1700 throttled=0 busy=0 limit=2441',
      '    converged at time=16, speed=6',
    ]);
  });

  test('linear_grow, recover value: +200 per second catches up with +100 per second', () => {
    const lines = formatRun(simulateTchannel(PATTERNS.linear_grow, VALUE));
    expect(lines.slice(-3)).toEqual([
      '    +++ time=20 rps=2000 throttled=99 busy=0 limit=2000',
      '    +++ time=21 rps=2200 throttled=0 busy=0 limit=2200',
      '    converged at time=21, speed=11',
    ]);
  });

  test('linear_decrease: converges earlier, because demand falls', () => {
    expect(formatRun(simulateTchannel(PATTERNS.linear_decrease, RATE)).slice(-3)).toEqual([
      '    +++ time=16 rps=2441 throttled=958 busy=0 limit=2441',
      '    +++ time=17 rps=3300 throttled=0 busy=0 limit=9765',
      '    converged at time=17, speed=7',
    ]);
    expect(formatRun(simulateTchannel(PATTERNS.linear_decrease, VALUE)).slice(-3)).toEqual([
      '    +++ time=23 rps=2600 throttled=99 busy=0 limit=2600',
      '    +++ time=24 rps=2600 throttled=0 busy=0 limit=2800',
      '    converged at time=24, speed=14',
    ]);
  });

  test('linear_decrease: demand ends at 0', () => {
    const traffic = { ...PATTERNS.linear_decrease, rps: { start: 250, shape: 'linear_decrease' } };
    const { busy } = simulateTchannel(traffic as typeof PATTERNS.steady, RATE);
    expect(busy.map(({ rps }) => rps)).toEqual([150, 50, 0, 0, 0, 0, 0, 0, 0]);
  });

  test('without throttling the recovery is empty', () => {
    const healthy = { ...PATTERNS.steady, busy: { start: 0, shape: 'steady' } } as const;
    const run = simulateTchannel(healthy, RATE);
    expect(run.recovering).toEqual([]);
    expect(formatRun(run).at(-1)).toBe('    converged at time=10, speed=0');
  });

  // 21 × 240 is more than 5000, 20 × 240 is not: recovered in second 31, the first that does not count.
  test('recovery in second 31 has failed to converge, in second 30 it has converged', () => {
    const late = simulateTchannel(PATTERNS.steady, { recoverValue: 240 });
    expect(formatRun(late).slice(-2)).toEqual([
      '    +++ time=31 rps=5000 throttled=0 busy=0 limit=5040',
      '    failed to converge',
    ]);
    const inTime = simulateTchannel(PATTERNS.steady, { recoverValue: 250 });
    expect(formatRun(inTime).at(-1)).toBe('    converged at time=30, speed=20');
  });

  test('flappy: busy replies in every third second', () => {
    const flow = { start: 7, shape: 'flappy' } as const;
    expect([1, 2, 3, 4, 5, 6].map((time) => flowAt(flow, time))).toEqual([0, 0, 7, 0, 0, 7]);
  });
});

describe('TChannel simulation with any traffic', () => {
  const flow = fc.record({
    start: fc.integer({ min: 0, max: 9_999_999 }),
    shape: fc.constantFrom(...TRAFFIC_SHAPES),
  });
  const amount = fc.double({ min: 0, minExcluded: true, max: 1e9, noNaN: true });
  const recovery: fc.Arbitrary<Recovery> = fc.oneof(
    amount.map((recoverRate) => ({ recoverRate })),
    amount.map((recoverValue) => ({ recoverValue })),
  );
  const run = fc
    .tuple(fc.record({ rps: flow, busy: flow }), recovery)
    .map(([traffic, kind]) => simulateTchannel(traffic, kind));

  test('demand is sent or throttled, and only sent calls are busy', () => {
    fc.assert(
      fc.property(run, ({ busy, recovering, maxLimit }) => {
        for (const second of [...busy, ...recovering]) {
          expect(second.sent + second.throttled).toBeCloseTo(second.rps, 6);
          expect(second.busy).toBeLessThanOrEqual(second.sent);
          expect(second.sent).toBeLessThanOrEqual(second.limit);
          expect(second.limit).toBeGreaterThan(0); // a limit of 0 would never grow again
          expect(second.limit).toBeLessThanOrEqual(maxLimit);
        }
      }),
    );
  });

  test('numbers are printed as whole numbers of at least 0', () => {
    const row = /^ {4}(---|\+\+\+) time=\d+ rps=\d+ throttled=\d+ busy=\d+ limit=\d+$/;
    fc.assert(
      fc.property(run, (any) => {
        const rows = formatRun(any).filter((line) => line.includes(' time='));
        for (const line of rows) if (!line.includes('converged')) expect(line).toMatch(row);
      }),
    );
  });
});
