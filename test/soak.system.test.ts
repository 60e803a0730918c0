import { describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { redisServer } from './support/services.ts';

/** A watchdog: a normal run is much shorter. */
const MAX_RUN_MS = 120_000;

interface SoakResult {
  readonly name?: string;
  readonly every: number;
  readonly reserve: number;
  readonly times: number;
  readonly grants: number;
  readonly tooClose: number;
  readonly extra: number;
  readonly maxExtra: number;
  readonly lost: number;
  readonly onTime: number;
  readonly nextGrantMs: number;
  readonly strictAfterMs: number;
  readonly cap: number;
  readonly peak: number;
  readonly aborted: number;
  /** Null if it never happened. */
  readonly backAfterMs: number | null;
}

const soak = (scenario: string): Promise<SoakResult[]> =>
  runBench(MAX_RUN_MS, 'soak/redis.mjs', scenario, '--short');

describe.skipIf(redisServer() === undefined)(
  'soak: redis spacing, eight processes with skewed clocks',
  () => {
    test(
      'no violations, no unanswered calls, and permits follow each other at the interval',
      async () => {
        const results = await soak('strict');
        expect(results.length).toBeGreaterThan(1);
        for (const { grants, tooClose, lost, onTime } of results) {
          expect({ tooClose, lost }).toEqual({ tooClose: 0, lost: 0 });
          expect(grants).toBeGreaterThan(30);
          expect(onTime).toBeGreaterThan(0.8); // 99 % on an idle machine
        }
      },
      MAX_RUN_MS,
    );
  },
);

describe.skipIf(redisServer() === undefined)('soak: redis spacing during faults', () => {
  test(
    'overshoot is at most what Redis lost, and every call is answered',
    async () => {
      const results = await soak('chaos');
      expect(results.length).toBeGreaterThan(4);
      for (const { name, extra, maxExtra, lost, strictAfterMs } of results) {
        expect({ name, lost }).toEqual({ name, lost: 0 });
        expect(extra, name).toBeLessThanOrEqual(maxExtra);
        expect(strictAfterMs, name).toBeLessThan(2000); // within one on an idle machine
      }
    },
    MAX_RUN_MS,
  );
});

describe.skipIf(redisServer() === undefined)('soak: redis, workers killed', () => {
  test(
    'concurrency limit: capacity of killed workers returns when their leases expire',
    async () => {
      const results = await soak('concurrency');
      expect(results.length).toBe(2);
      for (const { cap, peak, aborted, backAfterMs, lost } of results) {
        expect({ peak, lost }).toEqual({ peak: cap, lost: 0 });
        expect(aborted).toBeGreaterThan(0);
        expect(backAfterMs ?? Infinity).toBeLessThan(10_000 + 3000); // a lease, and the poll interval
      }
    },
    MAX_RUN_MS,
  );

  test(
    'prefetch: overshoot stays within its bound',
    async () => {
      const [{ extra, maxExtra, grants, lost }] = await soak('prefetch');
      expect(lost).toBe(0);
      expect(extra).toBeLessThanOrEqual(maxExtra);
      expect(grants).toBeGreaterThan(100);
    },
    MAX_RUN_MS,
  );
});
