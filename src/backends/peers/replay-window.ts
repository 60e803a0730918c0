/**
 * Replay window: accepts each of a peer's datagrams at most once, by its sequence number. Replayed datagrams are
 * dropped before they are handled.
 *
 *     ───── too old ─────┤  seen or not seen  ├──▶ new
 *            highest - WINDOW_SIZE          highest
 */

/** How many later datagrams may arrive before one that is still accepted; a power of two. */
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

  /** Whether this number is higher than all earlier ones. */
  isLatest(seq: number): boolean {
    return seq > this.#highest;
  }

  /** Records a number; returns true if it is new. */
  accept(seq: number): boolean {
    if (seq <= this.#highest - WINDOW_SIZE) return false;
    this.#slideTo(seq);
    const bit = 1 << (seq % 32);
    const word = (seq % WINDOW_SIZE) >>> 5;
    if ((this.#seen[word] & bit) !== 0) return false;
    this.#seen[word] |= bit;
    return true;
  }

  /** Advances the window to `seq` and clears the bits of the new numbers. */
  #slideTo(seq: number): void {
    for (let next = Math.max(this.#highest, seq - WINDOW_SIZE) + 1; next <= seq; ) {
      const word = (next % WINDOW_SIZE) >>> 5;
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
