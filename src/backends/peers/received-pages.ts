/**
 * Which pages of a limit have been merged in a state transfer: they arrive in any order, and each is merged once.
 *
 *     0 ──── 80 ──── 160 ····· 240 ──── 320          missing: from 160 on
 *                     ▲         └─ ahead ─┘
 *                   cursor
 *
 * A page goes from its cursor to the next one. Both are slots in the table of the source. A page that is sent again may
 * end elsewhere, so pages can overlap.
 */

/** Ranges of pages beyond the first gap. */
const MAX_RANGES_AHEAD = 64;

interface Range {
  readonly from: number;
  readonly to: number;
}

export class ReceivedPages {
  #cursor = 0;
  #isComplete = false;
  /** Beyond the first gap, in the order of `from`. */
  #ahead: readonly Range[] = [];

  /** All keys before it have been merged: the next request begins there. */
  get cursor(): number {
    return this.#cursor;
  }

  /** Whether the last page has been merged, and all before it. */
  get isComplete(): boolean {
    return this.#isComplete;
  }

  /**
   * Whether a page is to be merged now; `next` is 0 on the last one. That one has to wait until no page before it is
   * missing: keys of a gap may move behind it meanwhile, as the table of the source grows.
   */
  accepts(cursor: number, next: number): boolean {
    if (cursor <= this.#cursor) return next === 0 || next > this.#cursor;
    if (next === 0 || this.#ahead.length >= MAX_RANGES_AHEAD) return false;
    return !this.#ahead.some(({ from, to }) => from <= cursor && next <= to);
  }

  /** To be called for each accepted page. */
  add(cursor: number, next: number): void {
    if (cursor > this.#cursor)
      this.#ahead = [...this.#ahead, { from: cursor, to: next }].sort((a, b) => a.from - b.from);
    else if (next === 0) this.#isComplete = true;
    else this.#advanceTo(next);
  }

  #advanceTo(next: number): void {
    this.#cursor = next;
    for (const { from, to } of this.#ahead)
      if (from <= this.#cursor) this.#cursor = Math.max(this.#cursor, to);
    this.#ahead = this.#ahead.filter(({ to }) => to > this.#cursor);
  }
}
