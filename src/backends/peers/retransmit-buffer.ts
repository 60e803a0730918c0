/**
 * A node's own reports, kept for a while: whoever missed one can have it again.
 */

import type { Millis } from '../../core/clock.ts';

/** A report, and when it was made. */
interface SentReport {
  readonly sentAt: Millis;
  readonly bytes: Uint8Array;
}

export class RetransmitBuffer {
  readonly #retentionMs: Millis;
  readonly #maxBytes: number;
  #reports: SentReport[] = [];
  #bytes = 0;
  /** The number of the last report; 0: there was none. */
  lastSeq = 0;

  constructor(retentionMs: Millis, maxBytes: number) {
    this.#retentionMs = retentionMs;
    this.#maxBytes = maxBytes;
  }

  /** The oldest that can be had; one more than the last if none can. */
  get firstSeq(): number {
    return this.lastSeq + 1 - this.#reports.length;
  }

  /** The oldest of them that was made since; one more than the last if none was. */
  firstSeqSince(since: Millis): number {
    const older = this.#reports.findIndex(({ sentAt }) => sentAt >= since);
    return older < 0 ? this.lastSeq + 1 : this.firstSeq + older;
  }

  get isOverCapacity(): boolean {
    return this.#bytes > this.#maxBytes;
  }

  /** Keeps the next report. */
  add(bytes: Uint8Array, sentAt: Millis): void {
    this.lastSeq++;
    this.#reports.push({ sentAt, bytes });
    this.#bytes += bytes.length;
  }

  /** Those of these numbers that can be had, at most so many. */
  reportsIn(ranges: readonly number[], most: number): SentReport[] {
    const { firstSeq, lastSeq } = this;
    const found: SentReport[] = [];
    for (let n = 0; n + 1 < ranges.length; n += 2) {
      const end = Math.min(ranges[n] + ranges[n + 1], lastSeq + 1);
      for (let seq = Math.max(ranges[n], firstSeq); seq < end && found.length < most; seq++) {
        found.push(this.#reports[seq - firstSeq]);
      }
    }
    return found;
  }

  /** Drops what is too old, or too much. */
  evict(now: Millis): void {
    let old = 0;
    for (; old < this.#reports.length; old++) {
      const { sentAt, bytes } = this.#reports[old];
      if (now - sentAt <= this.#retentionMs && !this.isOverCapacity) break;
      this.#bytes -= bytes.length;
    }
    if (old > 0) this.#reports = this.#reports.slice(old);
  }
}
