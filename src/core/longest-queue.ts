/**
 * Finds the key with the most waiters when a queue that all keys share is full (longest queue drop).
 *
 * A call of a key with fewer waiters takes the place of its last waiter. Alone, a key can still use the whole queue.
 *
 * `#most` is at least the size of every queue. It grows with them, and only a search lowers it, so a full queue of
 * short ones is searched once and not again for each call. The longest queue found is replaced when it has lost half.
 */

interface SizedQueue {
  readonly waiters: { readonly size: number };
}

export class LongestQueue<Q extends SizedQueue> {
  #most = 0;
  #longest: Q | undefined;

  /** A waiter joined this queue. */
  onGrowth(queue: Q): void {
    if (queue.waiters.size <= this.#most) return;
    this.#most = queue.waiters.size;
    this.#longest = queue;
  }

  /** A queue that stays longer than one of `size` even if a waiter moves from it to that one. */
  findLongerThan(size: number, queues: Iterable<Q>): Q | undefined {
    const known = this.#longest?.waiters.size ?? 0;
    if (this.#most > size + 1 && (known <= size + 1 || known < this.#most / 2)) {
      this.#most = 0;
      for (const queue of queues) this.onGrowth(queue);
    }
    return this.#most > size + 1 ? this.#longest : undefined;
  }
}
