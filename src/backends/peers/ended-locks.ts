/** Keys whose lock was ended by a success or a reset: a late message about that lock must not lock them again. */

import type { Millis } from '../../core/clock.ts';

/** Longer than a report can be late: it is sent again for a minute. */
const KEPT_MS: Millis = 120_000;

/** Of more keys, the oldest are dropped: a late message may then lock one again, until its lock ends by itself. */
const MAX_ENDED_LOCKS = 10_000;

export class EndedLocks {
  /** In the order of their times. */
  readonly #endedAt = new Map<string, Millis>();

  add(low: number, high: number, now: Millis): void {
    const id = idOf(low, high);
    this.#endedAt.delete(id);
    this.#endedAt.set(id, now);
    for (const [oldest, at] of this.#endedAt) {
      if (now - at <= KEPT_MS && this.#endedAt.size <= MAX_ENDED_LOCKS) return;
      this.#endedAt.delete(oldest);
    }
  }

  has(low: number, high: number, now: Millis): boolean {
    const at = this.#endedAt.get(idOf(low, high));
    return at !== undefined && now - at <= KEPT_MS;
  }

  /** A new lock has begun. */
  remove(low: number, high: number): void {
    this.#endedAt.delete(idOf(low, high));
  }
}

const idOf = (low: number, high: number): string => `${low} ${high}`;
