/**
 * Permits that no longer count because their key was forgotten: the calls go on, and their end changes nothing.
 *
 * Each permit has the generation in which it was issued. Forgetting a key begins another one.
 */

/** Of more keys that are forgotten with calls in flight, the end of the oldest calls counts again. */
const MAX_FORGOTTEN = 10_000;

export class DisownedPermits {
  /** Increases with each key that is added. */
  #generation = 0;
  /** By key with calls in flight that was forgotten: the first generation of permits that count again. */
  readonly #forgotten = new Map<string, number>();

  /** Of permits that are issued now. */
  get generation(): number {
    return this.#generation;
  }

  /** True for a permit of this generation that was issued before its key was forgotten. */
  has(key: string, generation: number): boolean {
    return this.#forgotten.size > 0 && generation < (this.#forgotten.get(key) ?? 0);
  }

  /** The permits that the key has now. */
  add(key: string): void {
    this.#forgotten.delete(key); // so that it is the last entry: the newest
    this.#forgotten.set(key, ++this.#generation);
    if (this.#forgotten.size <= MAX_FORGOTTEN) return;
    const [oldest] = this.#forgotten.keys();
    this.#forgotten.delete(oldest);
  }

  /** No permit is held any more. */
  clear(): void {
    this.#forgotten.clear();
  }
}
