/**
 * Groups: this process decides, by its group's bucket, and steals from other groups when that is low.
 *
 * A share around the one that keeps the group's bucket, which is this process's own or a fleet's. Nobody waits for a theft:
 * what was stolen is there for those who ask next, and for those who wait.
 */

import type { Millis } from '../../clock.ts';
import type { Decision } from '../../decision.ts';
import { ShareAround } from '../around.ts';
import type { Share } from '../share.ts';
import type { GroupLimit } from './limits.ts';

/** What a bucket needs of its group. */
export interface Company {
  /** Others may steal from it, until what comes back is called. */
  add(limit: GroupLimit): () => void;
  /** So much was asked of a bucket that is low. */
  want(limit: GroupLimit, key: string, units: number): void;
}

/** Below this part of its burst a bucket is low. */
export const LOW = 0.5;

export interface GroupBucket {
  readonly name: string;
  /** The group's part of the burst. */
  readonly burst: number;
  /** Units have come for a key: whoever waits may try again. */
  readonly onRoom?: ((key: string) => void) | undefined;
}

export class GroupShare extends ShareAround {
  /** What is stolen is stolen for a key by its name. */
  readonly wantsNames = true;
  readonly #company: Company;
  readonly #limit: GroupLimit;
  readonly #low: number;
  readonly #leaveCompany: () => void;

  constructor(inner: Share, { name, burst, onRoom }: GroupBucket, company: Company) {
    super(inner);
    this.#company = company;
    this.#low = burst * LOW;
    this.#limit = {
      name,
      burst,
      remaining: (key) => inner.inspect(key).remaining,
      take: (key, most) => inner.take(key, most),
      add(key, units) {
        inner.settle(key, { outcome: 'ignored', cost: units, dueAt: 0 });
        onRoom?.(key);
      },
    };
    this.#leaveCompany = company.add(this.#limit);
  }

  override ask(key: string, cost: number, part?: number): Decision {
    return this.#watched(key, cost, super.ask(key, cost, part));
  }

  override askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#watched(key, cost, super.askNow(key, cost, now, part));
  }

  override take(key: string, most: number): number {
    const taken = super.take(key, most);
    const wanted = Math.min(most, this.#limit.burst);
    if (taken < wanted) this.#company.want(this.#limit, key, wanted);
    return taken;
  }

  override leave(): void {
    this.#leaveCompany();
    super.leave();
  }

  #watched(key: string, cost: number, decision: Decision): Decision {
    const isLow = decision.verdict !== 'allow' || decision.remaining < this.#low;
    if (isLow && cost > 0) this.#company.want(this.#limit, key, cost);
    return decision;
  }
}
