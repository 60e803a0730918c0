import { describe, expect, test } from 'vitest';
import { runs } from '../../../test/support/runs.ts';
import { fuzzPool } from '../../simulator/pool/fuzz.ts';
import {
  applySync,
  type Claim,
  createPoolState,
  NO_CLAIM,
  type SyncResponse,
} from './agreement.ts';

const SEEDS = runs(300);

const OPTIONS = { memberTimeoutMs: 2000, isStrict: false };

test('pool agreement: a released turn is not reused in its second, even if the clock is set back', () => {
  const pool = createPoolState(0, OPTIONS);
  const seqs = new Map<string, number>();
  const syncOf = (id: string, using: Claim, now: number) => {
    const seq = (seqs.get(id) ?? 0) + 1;
    seqs.set(id, seq);
    return applySync(pool, { id, seq, using }, now, OPTIONS) as SyncResponse;
  };
  const even = { size: 2, rank: -1, round: 0 };
  syncOf('a', NO_CLAIM, 0);
  syncOf('b', NO_CLAIM, 1);
  for (const now of [900, 1800]) for (const id of ['a', 'b']) syncOf(id, NO_CLAIM, now);
  syncOf('a', even, 2500);
  syncOf('b', even, 2500);
  const turn = syncOf('a', even, 2500).claim;
  expect(turn.rank).toBe(0);
  syncOf('a', even, 5500); // releases its turn, and gets it again
  syncOf('a', { size: 3, rank: -1, round: 0 }, 4500); // releases more
  expect(syncOf('a', even, 4600)).toMatchObject({ claim: { rank: 0 }, effectiveAt: 6000 });
});

test('pool agreement: a store that lost its state extends the quiet period by an outage', () => {
  const pool = createPoolState(0, OPTIONS);
  const half = { size: 2, rank: -1, round: 0 };
  let seq = 0;
  const sizeAt = (now: number) =>
    applySync(pool, { id: 'a', seq: ++seq, using: half }, now, OPTIONS)?.claim.size;
  expect(sizeAt(100)).toBe(2);
  const backAt = 5100; // the outage began before the other member had synced
  expect([0, 900, 1800, 1899].map((ms) => sizeAt(backAt + ms))).toEqual([2, 2, 2, 2]);
  expect(sizeAt(backAt + 1900)).toBe(1);
});

describe('pool agreement', () => {
  test.each([
    ['strict members, each of which may lose the store', { isStrict: true }],
    ['members that keep their claim, through crashes and outages for all', { isStrict: false }],
  ])(
    'pool agreement: parts never add up to more than the limit: %s',
    (_, setting) => {
      for (let seed = 1; seed <= SEEDS; seed++) {
        const { overshoots, isFullyUsed } = fuzzPool({ ...setting, seed, steps: 400 });
        expect({ seed, overshoots, isFullyUsed }).toEqual({
          seed,
          overshoots: [],
          isFullyUsed: true,
        });
      }
    },
    20_000 + SEEDS * 20,
  );
});
