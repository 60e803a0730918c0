/**
 * What was begun and nobody waits for, until somebody wants to see the end of all of it.
 */

export class Underway {
  readonly #works = new Set<Promise<unknown>>();

  /** Takes note of it until it is over, however it ends. */
  add<T>(work: Promise<T>): Promise<T> {
    this.#works.add(work);
    const over = (): unknown => this.#works.delete(work);
    work.then(over, over);
    return work;
  }

  /** Resolves when nothing is under way any more: what is begun meanwhile counts, too. */
  async ended(): Promise<void> {
    while (this.#works.size > 0) await Promise.allSettled(this.#works);
  }
}
