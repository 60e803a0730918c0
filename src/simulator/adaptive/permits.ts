/**
 * Permits, handed out in the order they were asked for, under a limit that moves.
 *
 * A cut takes free permits away at once; the rest is a debt. Whoever is handed a permit while there
 * is debt pays with it and goes to the back of the queue.
 *
 * A waiter that was handed a permit does not act on it at once: `run` lets them act once everything
 * else of the instant has happened, so that a cut in the same instant still counts.
 */

type Waiter = () => void;

export class PermitQueue {
  #free: number;
  #debt = 0;
  #queue: Waiter[] = [];
  #granted: Waiter[] = [];

  constructor(limit: number) {
    this.#free = limit;
  }

  /** Queues for a permit; `act` is called with it from `run`. */
  acquire(act: Waiter): void {
    if (this.#free > 0) {
      this.#free--;
      this.#granted.push(act);
    } else {
      this.#queue.push(act);
    }
  }

  release(): void {
    const next = this.#queue.shift();
    if (next) this.#granted.push(next);
    else this.#free++;
  }

  /** Follows the limit's move from one value to another. */
  resize(from: number, to: number): void {
    for (let n = from; n < to; n++) this.release();
    const cut = Math.max(0, from - to);
    const free = Math.min(cut, this.#free);
    this.#free -= free;
    this.#debt += cut - free;
  }

  /** Lets everybody act who was handed a permit, and whoever that brings along. */
  runGranted(): void {
    for (let act = this.#granted.shift(); act; act = this.#granted.shift()) {
      if (this.#debt > 0) {
        this.#debt--;
        this.acquire(act);
      } else {
        act();
      }
    }
  }
}
