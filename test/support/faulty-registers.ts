/**
 * Registers in memory behind a faulty network, on virtual time: requests and replies are delayed or lost, also after the
 * request was executed. Processes have clocks with wrong offsets and rates.
 */

import {
  NO_REVISION,
  type RegisterStore,
  type StoredValue,
  type SwapResult,
} from '../../src/backends/etcd/store.ts';
import type { Clock, Millis } from '../../src/core/clock.ts';
import { UnavailableError } from '../../src/core/errors.ts';
import type { Random } from '../../src/core/random.ts';
import type { VirtualClock } from '../../src/testing/virtual-clock.ts';

export interface NetworkFaults {
  /** Part of all requests and replies that is lost. */
  readonly lossRate: number;
  /** Delay of 5 % of the rest, at most. */
  readonly maxDelayMs: Millis;
  /** Part of all timers that fire late. */
  readonly stallRate: number;
}

const MAX_STALL_MS = 30;

/** Delays and loses requests and replies. */
export class FaultyNetwork {
  readonly #clock: VirtualClock;
  readonly #random: Random;
  readonly #faults: NetworkFaults;
  /** Requests executed after their caller had timed out. */
  unacknowledged = 0;

  constructor(world: VirtualClock, random: Random, faults: NetworkFaults) {
    this.#clock = world;
    this.#random = random;
    this.#faults = faults;
  }

  /** `receive` calls back when the caller can take the reply or the timeout. */
  roundTrip<T>(
    deadlineMs: Millis,
    execute: () => T,
    receive = (callback: () => void): void => callback(),
  ): Promise<T> {
    return new Promise((resolve, reject) => {
      let isOver = false;
      const end = (complete: () => void): void =>
        receive(() => {
          if (!isOver) complete();
          isOver = true;
        });
      this.#schedule(deadlineMs, () => end(() => reject(new UnavailableError('registers'))));
      this.#transmit(() => {
        if (isOver) this.unacknowledged++;
        try {
          const reply = execute(); // possibly after the caller timed out
          this.#transmit(() => end(() => resolve(reply)));
        } catch (error) {
          this.#transmit(() => end(() => reject(error)));
        }
      });
    });
  }

  #transmit(arrive: () => void): void {
    const { lossRate, maxDelayMs } = this.#faults;
    if (this.#random() < lossRate) return;
    this.#schedule(
      this.#random() < 0.05 ? this.#random() * maxDelayMs : 0.5 + this.#random() * 3,
      arrive,
    );
  }

  #schedule(ms: Millis, callback: () => void): void {
    this.#clock.wakeAt(this.#clock.now() + ms, callback);
  }
}

export class FaultyRegisters {
  readonly #network: FaultyNetwork;
  readonly #values = new Map<string, StoredValue>();
  #revision = 0;

  constructor(world: VirtualClock, random: Random, faults: NetworkFaults) {
    this.#network = new FaultyNetwork(world, random, faults);
  }

  get unacknowledged(): number {
    return this.#network.unacknowledged;
  }

  /** The store as one process sees it, with its deadline. */
  server(deadlineMs: Millis): RegisterStore {
    return {
      compareAndSwap: (key, revision, replacement) =>
        this.#network.roundTrip<SwapResult>(deadlineMs, () => {
          const current = this.#values.get(key);
          if ((current?.revision ?? NO_REVISION) !== revision)
            return { isMatch: false, current, isAmbiguous: false };
          if (replacement)
            this.#values.set(key, { text: replacement.text, revision: `${++this.#revision}` });
          return { isMatch: true, revision: replacement ? `${this.#revision}` : revision };
        }),
      list: async (prefix) => [...this.#values.keys()].filter((key) => key.startsWith(prefix)),
      grantLease: () => this.#network.roundTrip(deadlineMs, () => 'lease'),
      close() {},
    };
  }
}

/** A clock with a wrong offset and rate, in a process whose timers sometimes fire late. */
export function skewedClock(
  world: VirtualClock,
  { aheadMs, faster }: { readonly aheadMs: Millis; readonly faster: number },
  { stallRate }: NetworkFaults,
  random: Random,
): Clock {
  const rate = 1 + faster;
  const lateMs = (): Millis => random() * (random() < stallRate ? MAX_STALL_MS : 1);
  return {
    now: () => world.now() * rate + aheadMs,
    wakeAt: (at, callback) => world.wakeAt((at - aheadMs) / rate + lateMs(), callback),
  };
}
