/**
 * The pool store interface.
 *
 * A store keeps one `PoolState` per pool and applies syncs one after the other, on its own clock. It is used
 * in the background, never for a decision.
 */

import type { Millis } from '../../core/clock.ts';
import type { AgreementOptions, SyncRequest, SyncResponse } from './agreement.ts';

/** Where the members of a pool agree on their number. */
export interface PoolStore {
  /** For messages: `redis`, `memory`. */
  readonly name: string;
  /** True if sizes are not agreed on: no other member gets the part of one that is silent. */
  readonly isStatic?: boolean;
  /**
   * Applies one sync; undefined if a later one of this member was applied before. Rejects if the store is
   * unavailable or misses its deadline.
   */
  sync(
    pool: string,
    request: SyncRequest,
    options: AgreementOptions,
  ): Promise<SyncResponse | undefined>;
  /** Removes a member. */
  leave(pool: string, id: string): Promise<void>;
  /** Saves a short text for later members, for at least `keepMs`; does nothing in a store without memory. */
  saveCheckpoint(pool: string, text: string, keepMs: Millis): Promise<void>;
  /** The text saved last, if any. */
  loadCheckpoint(pool: string): Promise<string | undefined>;
  /** All members, for display. */
  members(pool: string): Promise<readonly PoolMemberRecord[]>;
  /** Closes what the store has opened. For the creator of the store: several pools may use it. */
  close(): Promise<void>;
}

/** A member as the store knows it. */
export interface PoolMemberRecord {
  readonly id: string;
  readonly size: number;
  readonly rank: number;
  /** Time since its last sync. */
  readonly ageMs: number;
}
