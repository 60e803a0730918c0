/**
 * The merged pages of a limit in a state transfer: pages arrive in any order, and each is merged once.
 *
 *     0 ──── 80 ──── 160 ····· 240 ──── 320          missing: from 160 on
 *                     ▲         └─ ahead ─┘
 *                   cursor
 *
 * A page extends from its cursor to the next one. Both are slots in the table of the source. A repeated page may end
 * elsewhere, so pages can overlap.
 */

/** The most ranges of pages beyond the first gap. */
const MAX_RANGES_AHEAD = 64;

interface Range {
  readonly from: number;
  readonly to: number;
}

export class ReceivedPages {
  #cursor = 0;
  #isComplete = false;
  /** Ranges beyond the first gap, in the order of `from`. */
  #ahead: readonly Range[] = [];

  /** All keys before this cursor have been merged: the next request starts there. */
  get cursor(): number {
    return this.#cursor;
  }

  /** Whether the last page and all pages before it have been merged. */
  get isComplete(): boolean {
    return this.#isComplete;
  }

  /**
   * Whether a page can be merged now; `next` is 0 on the last page. The last page has to wait for all pages before it:
   * keys of a gap may move behind it meanwhile, as the table of the source grows.
   */
  accepts(cursor: number, next: number): boolean {
    if (cursor <= this.#cursor) return next === 0 || next > this.#cursor;
    if (next === 0 || this.#ahead.length >= MAX_RANGES_AHEAD) return false;
    return !this.#ahead.some(({ from, to }) => from <= cursor && next <= to);
  }

  /** Must be called for each accepted page. */
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
