/**
 * What a share is: who else spends from the same limit, and how they agree.
 *
 * Whatever stands behind it, this is all that stands above it ever asks for.
 */

import type { Millis } from '../clock.ts';
import type { Decision } from '../decision.ts';
import type { News, Settlement, View } from '../policy/policy.ts';

export interface Share {
  ask(key: string, cost: number): Decision;
  /** The same for who cannot use a place later: allow or deny, and nothing is reserved. */
  askNow(key: string, cost: number, now: Millis): Decision;
  /** Takes up to `most` whole units, Infinity for all there are, and says how many it got. */
  take(key: string, most: number): number;
  settle(key: string, settlement: Settlement): void;
  /** Takes in news from elsewhere; false if the limit has no use for it. */
  hear(key: string, news: News): boolean;
  /** What the key's state looks like; looking changes nothing. */
  inspect(key: string): View;

  /** Keys that have a state right now. */
  readonly keys: number;
  /** Keys that had to make room while still in use: above 0, `keysMax` is too small. */
  readonly evicted: number;
  /** Memory held for keys. */
  readonly bytes: number;
}
