import { describe, expect, test } from 'vitest';
import { tables } from '../../../test/support/ramp-tables.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { memoryStore } from './memory-store.ts';
import { pool } from './options.ts';

const ORIGIN = 1_000_000;
/** Time until the members agree. */
const BEGIN_AT = ORIGIN + 6000;

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

/** Splits a total use among the members: about equal fractions of their parts. */
function usesOf(parts: readonly number[], used: number): number[] {
  const uses = parts.map((part) => Math.floor((part * used) / sum(parts)));
  while (sum(uses) < used) {
    const unused = parts.map((part, n) => part - uses[n]);
    uses[unused.indexOf(Math.max(...unused))]++;
  }
  return uses;
}

describe('ramp tables in a pool', () => {
  for (const { id, mode, min, max, overSeconds, thresholdPercent, rows } of tables) {
    test.each([1, 2, 3, 7])(`ramp tables in a pool: table ${id} over %i members`, async (count) => {
      const clock = new VirtualClock(ORIGIN);
      const store = memoryStore(clock);
      const options = { min, max, over: overSeconds * 1000, mode, threshold: thresholdPercent };
      const pods = Array.from({ length: count }, (_, n) => {
        const membership = pool(store, { id: `pod${n}`, clock });
        return {
          membership,
          limited: limiter({ limit: { ramp: options }, backend: membership, clock }),
        };
      });
      await clock.advanceAsync(BEGIN_AT - clock.now());

      for (const { second, pool: expected, used } of rows) {
        await clock.advanceAsync(BEGIN_AT + second * 1000 + 250 - clock.now());
        const at = `second ${second}`;
        expect(pods.map(({ membership }) => membership.view().size)).toEqual(pods.map(() => count));
        if (expected === null) continue;
        const views = pods.map(({ limited }) => limited.inspect(''));
        expect([at, ...views.map((view) => view.level)]).toEqual([at, ...pods.map(() => expected)]);
        if (used === null) continue; // a second without a call
        const parts = views.map(({ remaining }) => remaining);
        expect([at, sum(parts)]).toEqual([at, expected]);
        const uses = usesOf(parts, used);
        // Members take more than they use, as batch readers do, and give back the rest.
        const got = pods.map(({ limited }) => limited.takeUpTo('', Infinity));
        expect([at, sum(got)]).toEqual([at, expected]);
        for (const [n, { limited }] of pods.entries()) limited.giveBack('', got[n] - uses[n]);
      }
      for (const { membership } of pods) await membership.close();
    });
  }
});
