/**
 * Which of a peer's datagrams have come. Each has a number, and counts at most once, whatever it says: what
 * somebody recorded and sends again is dropped before anything is made of it.
 *
 *     ───── too old ─────┤  seen, or not yet  ├──▶ not yet
 *                  last - WINDOW            last
 */

/** How many may overtake one that still counts; a power of two. */
const WINDOW_SIZE = 4096;

export class ReplayWindow {
  #highest: number;
  /** By number, those within the window: one bit each. */
  readonly #seen = new Uint32Array(WINDOW_SIZE / 32);

  /** Everything up to `count` is taken for seen. */
  constructor(count: number) {
    this.#highest = count;
    this.#seen.fill(2 ** 32 - 1);
  }

  /** Whether this is later than all that came before. */
  isLatest(count: number): boolean {
    return count > this.#highest;
  }

  /** True if this one counts: it had not come before. */
  accept(count: number): boolean {
    if (count <= this.#highest - WINDOW_SIZE) return false;
    this.#slideTo(count);
    const bit = 1 << (count % 32);
    const at = (count % WINDOW_SIZE) >>> 5;
    if ((this.#seen[at] & bit) !== 0) return false;
    this.#seen[at] |= bit;
    return true;
  }

  /** Makes room for those up to `count`, none of which has been seen. */
  #slideTo(count: number): void {
    for (let own = Math.max(this.#highest, count - WINDOW_SIZE) + 1; own <= count; ) {
      const word = (own % WINDOW_SIZE) >>> 5;
      const bit = own % 32;
      if (bit === 0 && own + 31 <= count) {
        this.#seen[word] = 0; // a node that speaks to many skips many, for each of them
        own += 32;
      } else {
        this.#seen[word] &= ~(1 << bit);
        own++;
      }
    }
    this.#highest = Math.max(this.#highest, count);
  }
}
