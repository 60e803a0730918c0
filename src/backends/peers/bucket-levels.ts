/**
 * Levels of token buckets that peers exchange: they are read and raised in the state that the policy owns.
 *
 * The buckets of one limit (`all`) are adjacent in one state.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { BUCKET_WIDTH, SPENT, UPDATED_AT } from '../../policies/bucket.ts';
import type { BucketTerms, State } from '../../policies/policy.ts';

/**
 * The distance of the binding bucket from empty, expressed as spent tokens of the largest bucket: one more hit raises
 * it by one, whichever bucket binds.
 */
export function bindingLevel(
  buckets: readonly BucketTerms[],
  state: State,
  i: number,
  now: Millis,
): number {
  let level = -Infinity;
  let largest = 0;
  for (let n = 0; n < buckets.length; n++) {
    const { perMs, burst } = buckets[n];
    const at = i + n * BUCKET_WIDTH;
    const elapsed = Math.max(0, now - state[at + UPDATED_AT]);
    level = Math.max(level, Math.max(0, state[at + SPENT] - elapsed * perMs) - burst);
    largest = Math.max(largest, burst);
  }
  return level + largest;
}

export function timeToFull(
  buckets: readonly BucketTerms[],
  state: State,
  i: number,
  now: Millis,
): readonly Millis[] {
  return buckets.map(({ perMs }, n) => {
    const at = i + n * BUCKET_WIDTH;
    return Math.max(0, state[at + SPENT] / perMs - Math.max(0, now - state[at + UPDATED_AT]));
  });
}

/**
 * Raises each bucket to at least a peer's level: its time to full, plus hits that the peer has not counted yet. The
 * debt stays within `maxDebt`, and finite, for any time that the peer reports.
 */
export function raiseLevels(
  buckets: readonly BucketTerms[],
  state: State,
  i: number,
  now: Millis,
  peerTimesToFull: readonly Millis[],
  hits: number,
): void {
  const localTimesToFull = timeToFull(buckets, state, i, now);
  for (let n = 0; n < buckets.length; n++) {
    const { perMs, burst, maxDebt } = buckets[n];
    const most = burst + Math.min(maxDebt, MAX_AMOUNT);
    const spent = Math.min(peerTimesToFull[n] * perMs + hits, most);
    if (localTimesToFull[n] * perMs >= spent) continue;
    const at = i + n * BUCKET_WIDTH;
    state[at + SPENT] = spent;
    state[at + UPDATED_AT] = Math.max(now, state[at + UPDATED_AT]);
  }
}
