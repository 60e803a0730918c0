/**
 * A node's own reports, kept for a while: whoever missed one can have it again.
 */

import type { Millis } from '../../core/clock.ts';

/** A report, and when it was made. */
interface Kept {
  readonly at: Millis;
  readonly bytes: Uint8Array;
}

export class History {
  readonly #keepMs: Millis;
  readonly #bytesMax: number;
  #kept: Kept[] = [];
  #bytes = 0;
  /** The number of the last report; 0: there was none. */
  last = 0;

  constructor(keepMs: Millis, bytesMax: number) {
    this.#keepMs = keepMs;
    this.#bytesMax = bytesMax;
  }

  /** The oldest that can be had; one more than the last if none can. */
  get first(): number {
    return this.last + 1 - this.#kept.length;
  }

  /** The oldest of them that was made since; one more than the last if none was. */
  firstSince(since: Millis): number {
    const older = this.#kept.findIndex(({ at }) => at >= since);
    return older < 0 ? this.last + 1 : this.first + older;
  }

  get isTooLarge(): boolean {
    return this.#bytes > this.#bytesMax;
  }

  /** Keeps the next report. */
  add(bytes: Uint8Array, at: Millis): void {
    this.last++;
    this.#kept.push({ at, bytes });
    this.#bytes += bytes.length;
  }

  /** Those of these numbers that can be had, at most so many. */
  again(ranges: readonly number[], most: number): Kept[] {
    const { first, last } = this;
    const found: Kept[] = [];
    for (let n = 0; n + 1 < ranges.length; n += 2) {
      const end = Math.min(ranges[n] + ranges[n + 1], last + 1);
      for (let seq = Math.max(ranges[n], first); seq < end && found.length < most; seq++) {
        found.push(this.#kept[seq - first]);
      }
    }
    return found;
  }

  /** Drops what is too old, or too much. */
  forget(now: Millis): void {
    let old = 0;
    for (; old < this.#kept.length; old++) {
      const { at, bytes } = this.#kept[old];
      if (now - at <= this.#keepMs && !this.isTooLarge) break;
      this.#bytes -= bytes.length;
    }
    if (old > 0) this.#kept = this.#kept.slice(old);
  }
}
