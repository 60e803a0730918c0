/**
 * A network that loses, delays, doubles and reorders what is sent, and may be split for a while.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';

export interface NetworkOptions {
  /** How long a datagram takes at least. */
  readonly delayMs: Millis;
  /** And how much longer at most: what was sent later may come sooner. */
  readonly jitterMs: Millis;
  /** What part of them never comes. */
  readonly loss: number;
  /** What part of them comes twice. */
  readonly duplicates: number;
  /** While it is split, the first so many nodes and the others do not hear each other. */
  readonly split?: { readonly fromMs: Millis; readonly toMs: Millis; readonly nodes: number };
}

export const DEFAULT_NETWORK: NetworkOptions = { delayMs: 2, jitterMs: 0, loss: 0, duplicates: 0 };

export class Network {
  readonly #options: NetworkOptions;
  readonly #random: Random;
  delivered = 0;
  dropped = 0;

  constructor(options: NetworkOptions, random: Random) {
    this.#options = options;
    this.#random = random;
  }

  /** When a datagram arrives: never, once or twice. Calls `arrive` for each, with the time it takes. */
  transmit(from: number, to: number, now: Millis, arrive: (afterMs: Millis) => void): void {
    const { loss, duplicates } = this.#options;
    if (this.#isSplit(from, to, now) || (loss > 0 && this.#random() < loss)) {
      this.dropped++;
      return;
    }
    this.delivered++;
    arrive(this.#delayMs());
    if (duplicates > 0 && this.#random() < duplicates) arrive(this.#delayMs());
  }

  #delayMs(): Millis {
    const { delayMs, jitterMs } = this.#options;
    return delayMs + (jitterMs > 0 ? this.#random() * jitterMs : 0);
  }

  #isSplit(from: number, to: number, now: Millis): boolean {
    const { split } = this.#options;
    if (!split || now < split.fromMs || now >= split.toMs) return false;
    return from < split.nodes !== to < split.nodes;
  }
}
