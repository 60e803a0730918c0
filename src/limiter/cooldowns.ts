/**
 * Rejects keys in Retry-After cool-down.
 *
 * "429, Retry-After: 5" is not a hint about a rate: a server refuses every call before then, and some count it against
 * the client. So while a key is in cool-down, no rule is checked.
 */

import type { Millis } from '../core/clock.ts';
import type { Feedback } from '../policies/policy.ts';

/** The most keys in cool-down at once. Beyond it the oldest one is evicted: a call goes out early. */
const MAX_COOLDOWNS = 10_000;

export class KeyCooldowns {
  readonly #endAt = new Map<string, Millis>();

  get isEmpty(): boolean {
    return this.#endAt.size === 0;
  }

  /** Rejects the key until `endAt`; a cool-down that ends later stays as it is. */
  add(key: string, endAt: Millis): void {
    const before = this.#endAt.get(key) ?? -Infinity;
    this.#endAt.delete(key); // re-inserted as the last entry, the newest
    this.#endAt.set(key, Math.max(before, endAt));
    if (this.#endAt.size > MAX_COOLDOWNS) {
      const [oldest] = this.#endAt.keys();
      this.#endAt.delete(oldest);
    }
  }

  remove(key: string): void {
    this.#endAt.delete(key);
  }

  /** The rest of the key's cool-down in whole milliseconds, rounded up; 0: none. */
  remainingMs(key: string, now: Millis): Millis {
    const endAt = this.#endAt.get(key);
    if (endAt === undefined) {
      this.#evictExpired(now);
      return 0;
    }
    if (endAt > now) return Math.ceil(endAt - now);
    this.#endAt.delete(key);
    return 0;
  }

  /** Evicts expired keys. Without it, a key that is never checked again would cost every check a lookup. */
  #evictExpired(now: Millis): void {
    const { value: oldest } = this.#endAt.entries().next();
    if (oldest && oldest[1] <= now) this.#endAt.delete(oldest[0]);
  }
}

/** The cool-down in the feedback; 0: none. */
export function cooldownIn(feedback: Feedback): Millis {
  if ('retryAfterMs' in feedback) return feedback.retryAfterMs;
  return 'remaining' in feedback && feedback.remaining < 1 ? (feedback.resetMs ?? 0) : 0;
}
