/**
 * Shifts the instants of a snapshot whose writer's clock was set back since, as if it were written now.
 *
 *     clock of the writer   ──●────────●────┤ savedAt          age of each call at that instant: known
 *     clock of the reader   ──●────────●────┤ now              equal ages: nothing is refilled, nothing is held longer
 */

import type { Millis } from '../core/clock.ts';
import { type Policy, setBackKey } from '../policies/policy.ts';
import type { TableSnapshot } from './backend.ts';

export function setBackTable(
  { entries, debtUntil }: TableSnapshot,
  policy: Policy,
  byMs: Millis,
  now: Millis,
): TableSnapshot {
  const stride = policy.width + 1; // the hash is before the state
  const moved = entries.slice();
  for (let at = 0; at + stride <= moved.length; at += stride)
    setBackKey(policy, moved, at + 1, byMs, now);
  const scratch = new Float64Array(policy.width);
  const moveDebt = (until: Millis): Millis => {
    if (until <= now + byMs) return -Infinity; // had ended before the snapshot was written
    policy.init(scratch, 0, now + byMs, until);
    setBackKey(policy, scratch, 0, byMs, now);
    return policy.freshAt(scratch, 0, true);
  };
  return { entries: moved, debtUntil: debtUntil?.map(moveDebt) };
}
