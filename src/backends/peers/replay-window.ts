/**
 * Replay window: accepts each of a peer's datagrams at most once, by its sequence number. A replayed datagram is
 * dropped before it is handled.
 *
 *     ───── too old ─────┤  seen or not seen  ├──▶ new
 *            highest - WINDOW_SIZE          highest
 */

/** How many datagrams may overtake one that is still accepted; a power of two. */
const WINDOW_SIZE = 4096;

export class ReplayWindow {
  #highest: number;
  /** One bit per sequence number in the window. */
  readonly #seen = new Uint32Array(WINDOW_SIZE / 32);

  /** Sequence numbers up to `seq` count as seen. */
  constructor(seq: number) {
    this.#highest = seq;
    this.#seen.fill(2 ** 32 - 1);
  }

  /** Whether this is higher than all numbers before. */
  isLatest(seq: number): boolean {
    return seq > this.#highest;
  }

  /** Whether the number was accepted, or is too old to tell. */
  has(seq: number): boolean {
    if (seq <= this.#highest - WINDOW_SIZE) return true;
    return seq <= this.#highest && (this.#seen[wordOf(seq)] & bitOf(seq)) !== 0;
  }

  /** True if the number is new. */
  accept(seq: number): boolean {
    if (seq <= this.#highest - WINDOW_SIZE) return false;
    this.#slideTo(seq);
    if (this.has(seq)) return false;
    this.#seen[wordOf(seq)] |= bitOf(seq);
    return true;
  }

  /** Moves the window up to `seq` and clears the bits of the new numbers. */
  #slideTo(seq: number): void {
    for (let next = Math.max(this.#highest, seq - WINDOW_SIZE) + 1; next <= seq; ) {
      const word = wordOf(next);
      const bit = next % 32;
      if (bit === 0 && next + 31 <= seq) {
        this.#seen[word] = 0; // a node that sends to many peers skips many numbers for each
        next += 32;
      } else {
        this.#seen[word] &= ~(1 << bit);
        next++;
      }
    }
    this.#highest = Math.max(this.#highest, seq);
  }
}

const wordOf = (seq: number): number => (seq % WINDOW_SIZE) >>> 5;
const bitOf = (seq: number): number => 1 << (seq % 32);
