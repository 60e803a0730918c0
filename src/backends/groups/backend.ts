/**
 * Groups: this process decides, by its group's bucket, and steals from other groups when that is low.
 *
 * A share around the one that keeps the group's bucket, which is this process's own or a fleet's. Nobody waits for a theft:
 * what was stolen is there for those who ask next, and for those who wait.
 */

import type { Millis } from '../../core/clock.ts';
import { type Decision, NEVER } from '../../core/decision.ts';
import type { Share } from '../backend.ts';
import { ShareAround } from '../delegating-backend.ts';
import type { GroupLimit } from './limits.ts';

/** What a share needs of its group. */
export interface OwnGroup {
  /** Others may steal from it, until what comes back is called. */
  add(limit: GroupLimit): () => void;
  /** So much was asked of a bucket that is low. */
  want(limit: GroupLimit, key: string, units: number): void;
}

export interface GroupBucket {
  readonly name: string;
  /** The group's part of the limit's rate, */
  readonly perMs: number;
  /** of its burst, */
  readonly burst: number;
  /** and what of that it keeps for its own calls. */
  readonly line: number;
  /** Units have come for a key: whoever waits may try again. */
  readonly onRoom?: ((key: string) => void) | undefined;
}

/** Below this part of the line a bucket is low: one that gives is near the line, and should not steal what would not fit. */
const LOW = 0.5;

/** Whether a call's bucket is low, as its decision tells. */
export function isLow({ perMs, line }: GroupBucket, cost: number, decision: Decision): boolean {
  if (decision.verdict === 'allow') return cost > 0 && decision.remaining < line * LOW;
  const ms = decision.verdict === 'deny' ? decision.retryAfterMs : decision.waitMs;
  return ms !== NEVER && cost - ms * perMs < line * LOW;
}

export class GroupShare extends ShareAround {
  /** What is stolen is stolen for a key by its name. */
  readonly wantsNames = true;
  readonly #group: OwnGroup;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #leaveGroup: () => void;

  constructor(inner: Share, bucket: GroupBucket, group: OwnGroup) {
    super(inner);
    this.#group = group;
    this.#bucket = bucket;
    const { name, line, onRoom } = bucket;
    this.#limit = {
      name,
      line,
      spare: (key, most) => inner.spare?.(key, most, line) ?? 0,
      gain(key, units) {
        inner.gain?.(key, units, line);
        onRoom?.(key);
      },
    };
    this.#leaveGroup = group.add(this.#limit);
  }

  override ask(key: string, cost: number, part?: number): Decision {
    return this.#watched(key, cost, super.ask(key, cost, part));
  }

  override askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#watched(key, cost, super.askNow(key, cost, now, part));
  }

  override take(key: string, most: number): number {
    const taken = super.take(key, most);
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.#group.want(this.#limit, key, wanted);
    return taken;
  }

  override leave(): void {
    this.#leaveGroup();
    super.leave();
  }

  #watched(key: string, cost: number, decision: Decision): Decision {
    if (isLow(this.#bucket, cost, decision)) this.#group.want(this.#limit, key, cost);
    return decision;
  }
}
