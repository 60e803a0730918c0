/**
 * A network in memory with loss, duplication and delay, for tests.
 *
 *     const hub = new MemoryHub({ clock, seed: 7, loss: 0.1 });
 *     const one = hub.transport('one');
 *
 * Deterministic for a given seed and clock.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import { type DatagramHandler, type Transport, zeroCounts } from './transport.ts';

export interface MemoryHubOptions {
  readonly clock: Clock;
  readonly seed?: number | undefined;
  /** Probabilities that a datagram is lost, and that it is duplicated. */
  readonly loss?: number | undefined;
  readonly duplication?: number | undefined;
  /** Range of the delay, drawn for each copy: a wide range reorders datagrams. */
  readonly delayMs?: readonly [from: Millis, to: Millis] | undefined;
  /** The value of `isLoopback` of its transports. Default true. */
  readonly isLoopback?: boolean | undefined;
}

/** The most datagrams in flight; further datagrams are lost. */
const MAX_DATAGRAMS_IN_FLIGHT = 100_000;

export class MemoryHub {
  readonly #options: MemoryHubOptions;
  readonly #random: Random;
  readonly #handlers = new Map<string, DatagramHandler>();
  #inFlight = 0;

  constructor(options: MemoryHubOptions) {
    this.#options = options;
    this.#random = seededRandom(options.seed ?? 1);
  }

  /** Creates a transport at an address. A second one at an address replaces the first, as after a restart. */
  transport(address: string): Transport {
    const counts = zeroCounts();
    let handler: DatagramHandler | undefined;
    const put = (to: string, bytes: Uint8Array): void => {
      if (handler === undefined) return;
      counts.sent++;
      this.deliver(address, to, bytes);
    };
    return {
      name: `memory ${address}`,
      isLoopback: this.#options.isLoopback ?? true,
      counts,
      open: async (onDatagram) => {
        handler = (bytes, from) => {
          counts.received++;
          onDatagram(bytes, from);
        };
        this.#handlers.set(address, handler);
      },
      broadcast: (bytes) => {
        for (const to of this.#handlers.keys()) if (to !== address) put(to, bytes);
      },
      send: put,
      close: async () => {
        if (this.#handlers.get(address) === handler) this.#handlers.delete(address);
        handler = undefined;
      },
    };
  }

  /** Delivers a datagram with any source address, including a forged one. */
  deliver(from: string, to: string, bytes: Uint8Array): void {
    const { loss = 0, duplication = 0, delayMs = [0, 0], clock } = this.#options;
    if (this.#random() < loss) return;
    const copies = this.#random() < duplication ? 2 : 1;
    const [minMs, maxMs] = delayMs;
    for (let n = 0; n < copies && this.#inFlight < MAX_DATAGRAMS_IN_FLIGHT; n++) {
      const copy = bytes.slice();
      const afterMs = minMs + (maxMs - minMs) * this.#random();
      this.#inFlight++;
      schedule(clock, clock.now() + afterMs, () => this.#receive(from, to, copy), false);
    }
  }

  #receive(from: string, to: string, bytes: Uint8Array): void {
    this.#inFlight--;
    this.#handlers.get(to)?.(bytes, from);
  }
}
