/**
 * Which of a peer's reports have arrived: each counts once, and gaps are known.
 *
 *     1 2 3 4 5 6 ·  8 9 ·  11                 missing: 7 and 10
 *               ▲           ▲
 *        contiguousTo     highest
 */

/** More missing reports than this are skipped, not requested. */
const MAX_GAP = 4096;

export class ReceivedSequences {
  /** All reports up to here have arrived or were skipped. */
  #contiguousTo: number;
  /** The highest sequence number that is known to exist. */
  #highest: number;
  readonly #outOfOrder = new Set<number>();
  /** Missing reports that were skipped. */
  lost = 0;

  /** Starts after `seq`. */
  constructor(seq: number) {
    this.#contiguousTo = seq;
    this.#highest = seq;
  }

  get highest(): number {
    return this.#highest;
  }

  get isComplete(): boolean {
    return this.#contiguousTo === this.#highest;
  }

  isCompleteTo(seq: number): boolean {
    return this.#contiguousTo >= Math.min(seq, this.#highest);
  }

  get missingCount(): number {
    return this.#highest - this.#contiguousTo - this.#outOfOrder.size;
  }

  /** True if the report is new. */
  accept(seq: number): boolean {
    if (seq <= this.#contiguousTo || this.#outOfOrder.has(seq)) return false;
    this.noteHighest(seq);
    if (seq <= this.#contiguousTo) return false; // just skipped, as the gap is too large
    this.#outOfOrder.add(seq);
    this.#advance();
    return true;
  }

  /** The peer has sent a report with this number. */
  noteHighest(seq: number): void {
    if (seq <= this.#highest) return;
    this.#highest = seq;
    if (this.#highest - this.#contiguousTo > MAX_GAP) this.skipTo(this.#highest - MAX_GAP);
  }

  skipTo(seq: number): void {
    const to = Math.min(seq, this.#highest);
    if (to <= this.#contiguousTo) return;
    // Iterates over arrived reports, not missing ones: a peer may name a number that is far ahead.
    let lost = to - this.#contiguousTo;
    for (const arrived of this.#outOfOrder) {
      if (arrived <= to && this.#outOfOrder.delete(arrived)) lost--;
    }
    this.lost += lost;
    this.#contiguousTo = to;
    this.#advance();
  }

  /** Missing reports as pairs of first sequence number and count. */
  missingRanges(maxPairs: number): number[] {
    const ranges: number[] = [];
    let seq = this.#contiguousTo + 1;
    for (; seq <= this.#highest && ranges.length < maxPairs * 2; seq++) {
      if (this.#outOfOrder.has(seq)) continue;
      const at = ranges.length - 2;
      if (at >= 0 && ranges[at] + ranges[at + 1] === seq) ranges[at + 1]++;
      else ranges.push(seq, 1);
    }
    return ranges;
  }

  #advance(): void {
    while (this.#outOfOrder.delete(this.#contiguousTo + 1)) this.#contiguousTo++;
  }
}
