/**
 * A network inside one process, as bad as one likes: for tests.
 *
 *     const hub = new MemoryHub({ clock, seed: 7, loss: 0.1 });
 *     const one = hub.transport('one');
 *
 * The same seed and the same clock, the same losses.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import { type DatagramHandler, type Transport, zeroCounts } from './transport.ts';

export interface MemoryHubOptions {
  readonly clock: Clock;
  readonly seed?: number;
  /** What part of all datagrams never comes, and comes twice. */
  readonly loss?: number;
  readonly duplication?: number;
  /** How long one takes; each copy by itself, so that one overtakes another if these differ. */
  readonly delayMs?: readonly [from: Millis, to: Millis];
  /** Whether it passes for a network of one machine. */
  readonly isLoopback?: boolean;
}

/** Datagrams on their way; more are lost, as in a real network. */
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

  /** A place in this network. Two with the same address are one after the other, as after a restart. */
  transport(address: string): Transport {
    const counts = zeroCounts();
    let own: DatagramHandler | undefined;
    const put = (to: string, bytes: Uint8Array): void => {
      if (own === undefined) return;
      counts.sent++;
      this.deliver(address, to, bytes);
    };
    return {
      name: `memory ${address}`,
      isLoopback: this.#options.isLoopback ?? true,
      counts,
      open: async (onDatagram) => {
        own = (bytes, from) => {
          counts.received++;
          onDatagram(bytes, from);
        };
        this.#handlers.set(address, own);
      },
      broadcast: (bytes) => {
        for (const to of this.#handlers.keys()) if (to !== address) put(to, bytes);
      },
      send: put,
      close: async () => {
        if (this.#handlers.get(address) === own) this.#handlers.delete(address);
        own = undefined;
      },
    };
  }

  /** Brings a datagram from one place to another, whoever really sent it: also for forgers. */
  deliver(from: string, to: string, bytes: Uint8Array): void {
    const { loss = 0, duplication = 0, delayMs = [0, 0], clock } = this.#options;
    if (this.#random() < loss) return;
    const copies = this.#random() < duplication ? 2 : 1;
    const [least, most] = delayMs;
    for (let n = 0; n < copies && this.#inFlight < MAX_DATAGRAMS_IN_FLIGHT; n++) {
      const copy = bytes.slice();
      const afterMs = least + (most - least) * this.#random();
      this.#inFlight++;
      schedule(clock, clock.now() + afterMs, () => this.#receive(from, to, copy), false);
    }
  }

  #receive(from: string, to: string, bytes: Uint8Array): void {
    this.#inFlight--;
    this.#handlers.get(to)?.(bytes, from);
  }
}
