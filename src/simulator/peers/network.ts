import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { FleetOptions } from './fleet.ts';

export interface NetworkOptions {
  /** Minimum delay of a datagram. */
  readonly delayMs: Millis;
  /** Jitter: additional random delay, which reorders datagrams. */
  readonly jitterMs: Millis;
  /** Fraction of datagrams that are lost. */
  readonly loss: number;
  /** Fraction of datagrams that arrive twice. */
  readonly duplicates: number;
  /** Network partition: the first `nodes` nodes cannot reach the rest. */
  readonly split?: { readonly fromMs: Millis; readonly toMs: Millis; readonly nodes: number };
}

export const DEFAULT_NETWORK: NetworkOptions = { delayMs: 2, jitterMs: 0, loss: 0, duplicates: 0 };

export const networkOf = ({ network }: FleetOptions): NetworkOptions => ({
  ...DEFAULT_NETWORK,
  ...network,
});

export class Network {
  readonly #options: NetworkOptions;
  readonly #random: Random;

  constructor(options: NetworkOptions, random: Random) {
    this.#options = options;
    this.#random = random;
  }

  /** Calls `arrive` once per delivered copy (none, one or two), with its delay. */
  transmit(from: number, to: number, now: Millis, arrive: (afterMs: Millis) => void): void {
    const { loss, duplicates } = this.#options;
    if (this.#isSplit(from, to, now) || (loss > 0 && this.#random() < loss)) return;
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
