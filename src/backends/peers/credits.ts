/**
 * What a node has gained from elsewhere for a key, and not used yet: a theft of its group, which its fellows know nothing of.
 *
 * They take off whatever they are told. So calls that are paid for with it are not told, or each of them would cost its
 * fellows a call of their own.
 */

/** Keys that something was gained for; of more, calls are told as any others. */
const MAX_KEYS = 1000;

export class ImportedCredits {
  readonly #units = new Map<string, number>();

  get isEmpty(): boolean {
    return this.#units.size === 0;
  }

  add(low: number, high: number, units: number): void {
    const id = `${low} ${high}`;
    const before = this.#units.get(id);
    if (before === undefined && this.#units.size >= MAX_KEYS) return;
    this.#units.set(id, (before ?? 0) + units);
  }

  /** How many of so many calls are paid for with it. */
  consume(low: number, high: number, hits: number): number {
    const id = `${low} ${high}`;
    const units = this.#units.get(id) ?? 0;
    const used = Math.min(hits, Math.floor(units));
    if (units - used < 1) this.#units.delete(id);
    else this.#units.set(id, units - used);
    return used;
  }
}
