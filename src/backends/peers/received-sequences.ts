/**
 * Which of a peer's numbered reports have come: each counts once, and those that are missing are known.
 *
 *     upTo            known: beyond it, those that came out of order
 *     1 2 3 4 5 6 ·  8 9 ·  11                 missing: 7 and 10
 *               ▲ upTo     ▲ last
 */

/** Beyond this many reports behind, what is missing is not asked for one by one any more. */
const MAX_GAP = 4096;

export class ReceivedSequences {
  /** Everything up to here has come, or was given up. */
  #contiguousTo: number;
  /** The last that is known to exist. */
  #highest: number;
  readonly #outOfOrder = new Set<number>();
  /** Reports that were given up. */
  lost = 0;

  /** Everything up to `seq` is taken for heard. */
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

  /** Whether nothing is missing up to there. */
  isCompleteTo(seq: number): boolean {
    return this.#contiguousTo >= Math.min(seq, this.#highest);
  }

  /** How many are missing. */
  get missingCount(): number {
    return this.#highest - this.#contiguousTo - this.#outOfOrder.size;
  }

  /** True if this one counts: it had not come before. */
  accept(seq: number): boolean {
    if (seq <= this.#contiguousTo || this.#outOfOrder.has(seq)) return false;
    this.noteHighest(seq);
    if (seq <= this.#contiguousTo) return false; // given up a moment ago, as too much is missing
    this.#outOfOrder.add(seq);
    this.#advance();
    return true;
  }

  /** There is one with this number, whether it has come or not. */
  noteHighest(seq: number): void {
    if (seq <= this.#highest) return;
    this.#highest = seq;
    if (this.#highest - this.#contiguousTo > MAX_GAP) this.skipTo(this.#highest - MAX_GAP);
  }

  /** What is missing up to `seq` will not come any more. */
  skipTo(seq: number): void {
    const to = Math.min(seq, this.#highest);
    if (to <= this.#contiguousTo) return;
    // By those that came, not by those that did not: somebody may name a number that is far ahead.
    let lost = to - this.#contiguousTo;
    for (const own of this.#outOfOrder) {
      if (own <= to && this.#outOfOrder.delete(own)) lost--;
    }
    this.lost += lost;
    this.#contiguousTo = to;
    this.#advance();
  }

  /** What is missing, as pairs of the first and how many; at most so many pairs. */
  missingRanges(maxPairs: number): number[] {
    const ranges: number[] = [];
    for (
      let seq = this.#contiguousTo + 1;
      seq <= this.#highest && ranges.length < maxPairs * 2;
      seq++
    ) {
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
