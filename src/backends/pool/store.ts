/**
 * Where members of a pool meet: the least there is to it.
 *
 * A store keeps one `PoolState` for each pool and lets one sync happen after the other, by its own clock. It is
 * asked in the background, never for a decision.
 */

import type { Millis } from '../../core/clock.ts';
import type { AgreementOptions, SyncRequest, SyncResponse } from './agreement.ts';

/** Where members of pools meet. */
export interface PoolStore {
  /** For people: `redis`, `memory`. */
  readonly name: string;
  /**
   * One sync; undefined if a later one of this member has come before it. Rejects if the store cannot be
   * reached, or does not answer within its deadline.
   */
  sync(
    pool: string,
    request: SyncRequest,
    options: AgreementOptions,
  ): Promise<SyncResponse | undefined>;
  /** A member goes. */
  leave(pool: string, id: string): Promise<void>;
  /** Leaves a short text to those who come later, for at least so long; nothing if there is nowhere to. */
  saveCheckpoint(pool: string, text: string, keepMs: Millis): Promise<void>;
  /** What was left last, if anything. */
  loadCheckpoint(pool: string): Promise<string | undefined>;
  /** Everybody who is there, for people. */
  members(pool: string): Promise<readonly PoolMemberRecord[]>;
  /** Ends what it has opened itself. Up to whoever made the store: several pools may meet in it. */
  close(): Promise<void>;
}

/** A member as the store knows it. */
export interface PoolMemberRecord {
  readonly id: string;
  readonly size: number;
  readonly rank: number;
  /** How long ago it was heard. */
  readonly ageMs: number;
}
