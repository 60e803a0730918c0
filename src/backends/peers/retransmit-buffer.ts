import type { Millis } from '../../core/clock.ts';

interface SentReport {
  readonly sentAt: Millis;
  readonly bytes: Uint8Array;
}

export class RetransmitBuffer {
  readonly #retentionMs: Millis;
  readonly #maxBytes: number;
  #reports: SentReport[] = [];
  #bytes = 0;
  /** Sequence number of the last report; 0 if there was none. */
  lastSeq = 0;

  constructor(retentionMs: Millis, maxBytes: number) {
    this.#retentionMs = retentionMs;
    this.#maxBytes = maxBytes;
  }

  /** The oldest report in the buffer; `lastSeq + 1` if it is empty. */
  get firstSeq(): number {
    return this.lastSeq + 1 - this.#reports.length;
  }

  /** The oldest report in the buffer that was sent at `since` or later; `lastSeq + 1` if there is none. */
  firstSeqSince(since: Millis): number {
    const index = this.#reports.findIndex(({ sentAt }) => sentAt >= since);
    return index < 0 ? this.lastSeq + 1 : this.firstSeq + index;
  }

  get isOverCapacity(): boolean {
    return this.#bytes > this.#maxBytes;
  }

  /** Adds a report. Also evicts at twice the size, because a node whose transport is not open never calls `evict`. */
  add(bytes: Uint8Array, sentAt: Millis): void {
    this.lastSeq++;
    this.#reports.push({ sentAt, bytes });
    this.#bytes += bytes.length;
    if (this.#bytes > 2 * this.#maxBytes) this.evict(sentAt);
  }

  /** The reports in these ranges that are still in the buffer, at most `max`. */
  reportsIn(ranges: readonly number[], max: number): SentReport[] {
    const { firstSeq, lastSeq } = this;
    const found: SentReport[] = [];
    for (let n = 0; n + 1 < ranges.length; n += 2) {
      const end = Math.min(ranges[n] + ranges[n + 1], lastSeq + 1);
      for (let seq = Math.max(ranges[n], firstSeq); seq < end && found.length < max; seq++) {
        found.push(this.#reports[seq - firstSeq]);
      }
    }
    return found;
  }

  /** Drops reports that are too old or exceed the size. */
  evict(now: Millis): void {
    let evicted = 0;
    for (; evicted < this.#reports.length; evicted++) {
      const { sentAt, bytes } = this.#reports[evicted];
      if (now - sentAt <= this.#retentionMs && !this.isOverCapacity) break;
      this.#bytes -= bytes.length;
    }
    if (evicted > 0) this.#reports = this.#reports.slice(evicted);
  }
}
