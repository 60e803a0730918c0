/**
 * A limit shared through Redis by real processes, while Redis and they are treated badly: bench/soak/ plays a
 * short version, this file says what must hold even on a machine that is busy with other things.
 */

import { describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { redisServer } from './support/services.ts';

/** Each play ends by itself long before; this is for what nobody thought of. */
const MAX_PLAY_MS = 120_000;

interface Played {
  readonly name?: string;
  readonly every: number;
  readonly reserve: number;
  readonly times: number;
  readonly grants: number;
  readonly tooClose: number;
  readonly extra: number;
  readonly mayExtra: number;
  readonly lost: number;
  readonly utilisation: number;
  readonly nextGrantMs: number;
  readonly strictAfterMs: number;
  readonly cap: number;
  readonly peak: number;
  readonly broken: number;
  /** Nothing if it never came to that. */
  readonly backAfterMs: number | null;
}

const soak = (what: string): Promise<Played[]> =>
  runBench(MAX_PLAY_MS, 'soak/run.mjs', what, '--short');

describe.skipIf(redisServer() === undefined)('eight processes with wrong clocks', () => {
  test(
    'are never closer than they may be, and use what there is',
    async () => {
      const played = await soak('strict');
      expect(played.length).toBeGreaterThan(1);
      for (const { grants, tooClose, lost, utilisation } of played) {
        expect({ tooClose, lost }).toEqual({ tooClose: 0, lost: 0 });
        expect(grants).toBeGreaterThan(30);
        expect(utilisation).toBeGreaterThan(0.8); // 99 % when nothing else runs
      }
    },
    MAX_PLAY_MS,
  );
});

describe.skipIf(redisServer() === undefined)('whatever happens to Redis', () => {
  test(
    'no more than it forgot is granted twice, and every call gets its answer',
    async () => {
      const played = await soak('chaos');
      expect(played.length).toBeGreaterThan(4);
      for (const { name, extra, mayExtra, lost, strictAfterMs } of played) {
        expect({ name, lost }).toEqual({ name, lost: 0 });
        expect(extra, name).toBeLessThanOrEqual(mayExtra);
        expect(strictAfterMs, name).toBeLessThan(2000); // within one when nothing else runs
      }
    },
    MAX_PLAY_MS,
  );
});

describe.skipIf(redisServer() === undefined)('workers killed in the middle of it', () => {
  test(
    'keep their places in flight until their leases end, and no longer',
    async () => {
      const played = await soak('flights');
      expect(played.length).toBe(2);
      for (const { cap, peak, broken, backAfterMs, lost } of played) {
        expect({ peak, lost }).toEqual({ peak: cap, lost: 0 });
        expect(broken).toBeGreaterThan(0);
        expect(backAfterMs ?? Infinity).toBeLessThan(10_000 + 3000); // a lease, and a line that looks
      }
    },
    MAX_PLAY_MS,
  );

  test(
    'take with them what they had taken ahead, and nobody is the better for it',
    async () => {
      const [{ extra, mayExtra, grants, lost }] = await soak('leases');
      expect(lost).toBe(0);
      expect(extra).toBeLessThanOrEqual(mayExtra);
      expect(grants).toBeGreaterThan(100);
    },
    MAX_PLAY_MS,
  );
});
