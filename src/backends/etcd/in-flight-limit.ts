/**
 * Bounds the swaps in flight of one limit. Further swaps queue here in order, where queueing is not mistaken for a
 * server without a reply.
 */

const MAX_IN_FLIGHT = 32;

export class InFlightLimit {
  #inUse = 0;
  readonly #waiters: (() => void)[] = [];

  async run<T>(work: () => Promise<T>): Promise<T> {
    if (this.#inUse >= MAX_IN_FLIGHT) await new Promise<void>((go) => this.#waiters.push(go));
    else this.#inUse++;
    try {
      return await work();
    } finally {
      const next = this.#waiters.shift();
      if (next) next();
      else this.#inUse--;
    }
  }
}
