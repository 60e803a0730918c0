/**
 * Units that a node's group has borrowed for a key and that are not used yet. The node's peers do not know of them.
 *
 * Peers subtract every reported hit. So hits that are covered by borrowed units are not reported: each would cost
 * the peers a token of their own bucket.
 */

/** Keys with credits; for further keys, hits are reported as usual. */
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

  /** Returns how many of the hits the credits cover. */
  consume(low: number, high: number, hits: number): number {
    const id = `${low} ${high}`;
    const units = this.#units.get(id) ?? 0;
    const used = Math.min(hits, Math.floor(units));
    if (units - used < 1) this.#units.delete(id);
    else this.#units.set(id, units - used);
    return used;
  }
}
