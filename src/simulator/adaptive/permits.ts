/**
 * A FIFO queue for permits under a limit that changes.
 *
 * A decrease removes free permits at once; the remainder is debt. While there is debt, a waiter that is granted a
 * permit gives it up and returns to the end of the queue.
 *
 * `runGranted` runs granted waiters at the end of an instant, so that a decrease in the same instant still applies.
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

  /** Queues for a permit; `runGranted` calls the waiter when it has one. */
  acquire(waiter: Waiter): void {
    if (this.#free > 0) {
      this.#free--;
      this.#granted.push(waiter);
    } else {
      this.#queue.push(waiter);
    }
  }

  release(): void {
    const next = this.#queue.shift();
    if (next) this.#granted.push(next);
    else this.#free++;
  }

  /** Applies a change of the limit. */
  resize(from: number, to: number): void {
    for (let n = from; n < to; n++) this.release();
    const cut = Math.max(0, from - to);
    const free = Math.min(cut, this.#free);
    this.#free -= free;
    this.#debt += cut - free;
  }

  /** Runs all waiters with a permit, including those that get one meanwhile. */
  runGranted(): void {
    for (let next = this.#granted.shift(); next; next = this.#granted.shift()) {
      if (this.#debt > 0) {
        this.#debt--;
        this.acquire(next);
      } else {
        next();
      }
    }
  }
}
