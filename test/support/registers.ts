/**
 * Registers in memory behind a bad network, on virtual time: what is sent takes a while, and may arrive late or never, or
 * its answer may be lost. Processes have clocks of their own that are set wrong and go wrong.
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
  /** What part of all requests and answers is lost, */
  readonly lossRate: number;
  /** how late a few of the others are, */
  readonly maxDelayMs: Millis;
  /** and how often a process is held up when it should wake. */
  readonly stallRate: number;
}

const MAX_STALL_MS = 30;

export class FaultyRegisters {
  readonly #clock: VirtualClock;
  readonly #random: Random;
  readonly #faults: NetworkFaults;
  readonly #values = new Map<string, StoredValue>();
  #revision = 0;
  /** How many swaps were carried out that nobody heard of. */
  unacknowledged = 0;

  constructor(world: VirtualClock, random: Random, faults: NetworkFaults) {
    this.#clock = world;
    this.#random = random;
    this.#faults = faults;
  }

  /** As one process reaches them: it gives up after so long. */
  server(deadlineMs: Millis): RegisterStore {
    return {
      compareAndSwap: (key, revision, put) =>
        this.#roundTrip(deadlineMs, () => {
          const current = this.#values.get(key);
          if ((current?.revision ?? NO_REVISION) !== revision)
            return { isMatch: false, current, isAmbiguous: false };
          if (put) this.#values.set(key, { text: put.text, revision: `${++this.#revision}` });
          return { isMatch: true, revision: put ? `${this.#revision}` : revision };
        }),
      grantLease: () => this.#roundTrip(deadlineMs, () => 'lease'),
      close() {},
    };
  }

  #roundTrip<T extends SwapResult | string>(deadlineMs: Millis, act: () => T): Promise<T> {
    return new Promise((done, failed) => {
      let isOver = false;
      const end = (tell: () => void): void => {
        if (!isOver) tell();
        isOver = true;
      };
      this.#schedule(deadlineMs, () => end(() => failed(new UnavailableError('registers'))));
      this.#transmit(() => {
        const answer = act(); // which may be after everybody has gone
        if (isOver) this.unacknowledged++;
        this.#transmit(() => end(() => done(answer)));
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

  #schedule(ms: Millis, act: () => void): void {
    this.#clock.wakeAt(this.#clock.now() + ms, act);
  }
}

/** A clock that is set and goes wrong, in a process that wakes late now and then. */
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
    wakeAt: (at, act) => world.wakeAt((at - aheadMs) / rate + lateMs(), act),
  };
}
