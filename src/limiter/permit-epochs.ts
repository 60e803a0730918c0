/**
 * Permits that no longer count because their key was forgotten: their calls continue, their settlement has no effect.
 *
 * Each permit carries the epoch in which it was issued. Forgetting a key begins another one.
 */

/** The most forgotten keys that are remembered. Beyond it, permits of the oldest key count again. */
const MAX_FORGOTTEN = 10_000;

export class PermitEpochs {
  /** Increases with each key that is forgotten. */
  #current = 0;
  /** For each forgotten key with calls in flight: the first epoch of permits that count again. */
  readonly #forgotten = new Map<string, number>();

  /** The epoch of permits that are issued now. */
  get current(): number {
    return this.#current;
  }

  /** True for a permit of this epoch that was issued before its key was forgotten. */
  isOver(key: string, epoch: number): boolean {
    return this.#forgotten.size > 0 && epoch < (this.#forgotten.get(key) ?? 0);
  }

  /** Ends the epoch of the permits that the key has now. */
  end(key: string): void {
    this.#forgotten.delete(key); // so that it is the last entry: the newest
    this.#forgotten.set(key, ++this.#current);
    if (this.#forgotten.size <= MAX_FORGOTTEN) return;
    const [oldest] = this.#forgotten.keys();
    this.#forgotten.delete(oldest);
  }

  /** No permit is held any more, so no key needs an entry. */
  clear(): void {
    this.#forgotten.clear();
  }
}
