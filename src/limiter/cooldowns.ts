/**
 * Keys nobody may use for a while, because the other side said so.
 *
 * "429, Retry-After: 5" is not a hint about a rate: whoever asks again before then is refused, and
 * some services count it against them. So while a key is paused no rule is asked at all.
 */

import type { Millis } from '../core/clock.ts';
import type { Feedback } from '../policies/policy.ts';

/** The most keys paused at once. Beyond it the oldest pause is forgotten: a call goes out early. */
const MAX_COOLDOWNS = 10_000;

export class KeyCooldowns {
  readonly #endAt = new Map<string, Millis>();

  get isEmpty(): boolean {
    return this.#endAt.size === 0;
  }

  /** Nobody until `endAt`; a pause that lasts longer already stays as it is. */
  add(key: string, endAt: Millis): void {
    const before = this.#endAt.get(key) ?? -Infinity;
    this.#endAt.delete(key); // so that it stands last: it is the youngest now
    this.#endAt.set(key, Math.max(before, endAt));
    if (this.#endAt.size > MAX_COOLDOWNS) {
      const [oldest] = this.#endAt.keys();
      this.#endAt.delete(oldest);
    }
  }

  /** How long the key is still paused; 0 if it is not. Whole milliseconds, never too few. */
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

  /** Keys that nobody asks for any more would be looked for with every question, for ever. */
  #evictExpired(now: Millis): void {
    const { value: oldest } = this.#endAt.entries().next();
    if (oldest && oldest[1] <= now) this.#endAt.delete(oldest[0]);
  }
}

/** How long the other side wants nothing, as far as the news says so. */
export function cooldownIn(feedback: Feedback): Millis {
  if ('retryAfterMs' in feedback) return feedback.retryAfterMs;
  return 'remaining' in feedback && feedback.remaining < 1 ? (feedback.resetMs ?? 0) : 0;
}
