/**
 * A store has one `PoolState` per pool and applies syncs one after the other, on its own clock. It is used in the
 * background, never for a decision.
 */

import type { Millis } from '../../core/clock.ts';
import type { AgreementOptions, SyncRequest, SyncResponse } from './agreement.ts';

/** The store in which the members of a pool agree on their number. */
export interface PoolStore {
  /** Name for messages: `redis`, `memory`. */
  readonly name: string;
  /** True if sizes are not agreed on: no other member receives the part of a silent member. */
  readonly isStatic?: boolean;
  /**
   * Applies a sync; undefined if a later sync of this member was already applied. Rejects if the store is unavailable
   * or exceeds its deadline.
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
  /** Returns the text that was saved last, if any. */
  loadCheckpoint(pool: string): Promise<string | undefined>;
  /** All members, for display. */
  members(pool: string): Promise<readonly PoolMemberRecord[]>;
  /** Closes connections that the store has opened. Called by the store's creator, because several pools may use it. */
  close(): Promise<void>;
}

/** A member in the store's records. */
export interface PoolMemberRecord {
  readonly id: string;
  readonly size: number;
  readonly rank: number;
  /** Time since its last sync. */
  readonly ageMs: number;
}
