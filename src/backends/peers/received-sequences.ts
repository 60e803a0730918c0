/**
 * Which of a peer's numbered reports have come: each counts once, and those that are missing are known.
 *
 *     upTo            known: beyond it, those that came out of order
 *     1 2 3 4 5 6 ·  8 9 ·  11                 missing: 7 and 10
 *               ▲ upTo     ▲ last
 */

/** Beyond this many reports behind, what is missing is not asked for one by one any more. */
const WINDOW = 4096;

export class Heard {
  /** Everything up to here has come, or was given up. */
  #upTo: number;
  /** The last that is known to exist. */
  #last: number;
  readonly #beyond = new Set<number>();
  /** Reports that were given up. */
  lost = 0;

  /** Everything up to `seq` is taken for heard. */
  constructor(seq: number) {
    this.#upTo = seq;
    this.#last = seq;
  }

  get last(): number {
    return this.#last;
  }

  get isComplete(): boolean {
    return this.#upTo === this.#last;
  }

  /** Whether nothing is missing up to there. */
  isCompleteTo(seq: number): boolean {
    return this.#upTo >= Math.min(seq, this.#last);
  }

  /** How many are missing. */
  get behindBy(): number {
    return this.#last - this.#upTo - this.#beyond.size;
  }

  /** True if this one counts: it had not come before. */
  accept(seq: number): boolean {
    if (seq <= this.#upTo || this.#beyond.has(seq)) return false;
    this.noteLast(seq);
    if (seq <= this.#upTo) return false; // given up a moment ago, as too much is missing
    this.#beyond.add(seq);
    this.#advance();
    return true;
  }

  /** There is one with this number, whether it has come or not. */
  noteLast(seq: number): void {
    if (seq <= this.#last) return;
    this.#last = seq;
    if (this.#last - this.#upTo > WINDOW) this.giveUp(this.#last - WINDOW);
  }

  /** What is missing up to `seq` will not come any more. */
  giveUp(seq: number): void {
    const to = Math.min(seq, this.#last);
    if (to <= this.#upTo) return;
    // By those that came, not by those that did not: somebody may name a number that is far ahead.
    let lost = to - this.#upTo;
    for (const own of this.#beyond) {
      if (own <= to && this.#beyond.delete(own)) lost--;
    }
    this.lost += lost;
    this.#upTo = to;
    this.#advance();
  }

  /** What is missing, as pairs of the first and how many; at most so many pairs. */
  missing(pairsMax: number): number[] {
    const ranges: number[] = [];
    for (let seq = this.#upTo + 1; seq <= this.#last && ranges.length < pairsMax * 2; seq++) {
      if (this.#beyond.has(seq)) continue;
      const at = ranges.length - 2;
      if (at >= 0 && ranges[at] + ranges[at + 1] === seq) ranges[at + 1]++;
      else ranges.push(seq, 1);
    }
    return ranges;
  }

  #advance(): void {
    while (this.#beyond.delete(this.#upTo + 1)) this.#upTo++;
  }
}
