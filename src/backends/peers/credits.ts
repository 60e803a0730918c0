/**
 * Units that a node's group has borrowed for a key and that are not used yet. The node's peers do not know of them.
 *
 * Peers subtract every reported hit. So hits that borrowed tokens cover are not reported: each would cost the peers a
 * token of their own bucket.
 */

/** The most keys with credits; hits of further keys are reported as usual. */
const MAX_KEYS = 1000;

export class ImportedCredits {
  readonly #tokens = new Map<string, number>();

  get isEmpty(): boolean {
    return this.#tokens.size === 0;
  }

  add(low: number, high: number, tokens: number): void {
    const id = `${low} ${high}`;
    const before = this.#tokens.get(id);
    if (before === undefined && this.#tokens.size >= MAX_KEYS) return;
    this.#tokens.set(id, (before ?? 0) + tokens);
  }

  /** Uses credits; returns the number of hits that they cover. */
  consume(low: number, high: number, hits: number): number {
    const id = `${low} ${high}`;
    const tokens = this.#tokens.get(id) ?? 0;
    const used = Math.min(hits, Math.floor(tokens));
    if (tokens - used < 1) this.#tokens.delete(id);
    else this.#tokens.set(id, tokens - used);
    return used;
  }
}
