export class PendingSet {
  readonly #promises = new Set<Promise<unknown>>();

  /** Tracks a promise until it settles. */
  add<T>(work: Promise<T>): Promise<T> {
    this.#promises.add(work);
    const remove = (): unknown => this.#promises.delete(work);
    work.then(remove, remove);
    return work;
  }

  /** Resolves when no promise is pending, including those added meanwhile. */
  async drained(): Promise<void> {
    while (this.#promises.size > 0) await Promise.allSettled(this.#promises);
  }
}
