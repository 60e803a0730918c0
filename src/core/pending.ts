/**
 * What was begun and nobody waits for, until somebody wants to see the end of all of it.
 */

export class PendingSet {
  readonly #promises = new Set<Promise<unknown>>();

  /** Takes note of it until it is over, however it ends. */
  add<T>(work: Promise<T>): Promise<T> {
    this.#promises.add(work);
    const over = (): unknown => this.#promises.delete(work);
    work.then(over, over);
    return work;
  }

  /** Resolves when nothing is under way any more: what is begun meanwhile counts, too. */
  async drained(): Promise<void> {
    while (this.#promises.size > 0) await Promise.allSettled(this.#promises);
  }
}
