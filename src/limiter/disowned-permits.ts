/**
 * Permits that no longer count because their key was forgotten: their calls continue, their settlement has no effect.
 *
 * Each permit carries the generation in which it was issued. Forgetting a key starts a new generation.
 */

/** The most forgotten keys that are remembered. Beyond it, permits of the oldest key count again. */
const MAX_FORGOTTEN = 10_000;

export class DisownedPermits {
  /** Increases with each key that is added. */
  #generation = 0;
  /** For each forgotten key with calls in flight: the first generation of permits that count again. */
  readonly #forgotten = new Map<string, number>();

  /** The generation of permits that are issued now. */
  get generation(): number {
    return this.#generation;
  }

  /** True for a permit of this generation that was issued before its key was forgotten. */
  has(key: string, generation: number): boolean {
    return this.#forgotten.size > 0 && generation < (this.#forgotten.get(key) ?? 0);
  }

  /** Disowns all permits that the key has now. */
  add(key: string): void {
    this.#forgotten.delete(key); // re-inserted as the last entry, the newest
    this.#forgotten.set(key, ++this.#generation);
    if (this.#forgotten.size <= MAX_FORGOTTEN) return;
    const [oldest] = this.#forgotten.keys();
    this.#forgotten.delete(oldest);
  }

  /** No permit is held any more, so no key needs an entry. */
  clear(): void {
    this.#forgotten.clear();
  }
}
