import { expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { etcdServer } from './support/services.ts';

/** A watchdog: a normal run is much shorter. */
const MAX_RUN_MS = 120_000;

interface SoakResult {
  readonly name: string;
  readonly permits: number;
  readonly tooClose: number;
  readonly nextPermitMs: number | null;
  readonly slowestMs: number;
  readonly checkedWithout?: number;
  readonly allowedWithout?: number;
  readonly startedWithout?: number;
}

test.skipIf(etcdServer() === undefined)(
  'soak: etcd spacing, no violations while members are killed or paused, and recovery within 5 s',
  async () => {
    const results = await runBench<SoakResult[]>(MAX_RUN_MS, 'soak/etcd.mjs', '--short');
    expect(results.length).toBe(4);
    expect(results.reduce((sum, { permits }) => sum + permits, 0)).toBeGreaterThan(20); // or it proves little
    for (const { name, tooClose, nextPermitMs, slowestMs } of results) {
      expect({ name, tooClose }).toEqual({ name, tooClose: 0 });
      expect(nextPermitMs ?? Infinity, name).toBeLessThan(5000);
      expect(slowestMs, name).toBeLessThan(1500); // the deadline is 1 s
    }
    const withoutQuorum = results.find(({ checkedWithout }) => checkedWithout !== undefined);
    expect(withoutQuorum?.allowedWithout).toBe(0);
    expect(withoutQuorum?.startedWithout).toBeLessThanOrEqual(1); // a waiter may have had the next permit already
    expect(withoutQuorum?.checkedWithout).toBeGreaterThan(50);
  },
  MAX_RUN_MS,
);
