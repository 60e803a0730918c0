/**
 * Registers in memory behind a bad network, on virtual time: what is sent takes a while, and may arrive late or never, or
 * its answer may be lost. Processes have clocks of their own that are set wrong and go wrong.
 */

import {
  type Found,
  NO_REVISION,
  type RegisterServer,
  type Swapped,
} from '../../src/backends/etcd/store.ts';
import type { Clock, Millis } from '../../src/core/clock.ts';
import { UnavailableError } from '../../src/core/errors.ts';
import type { Random } from '../../src/core/random.ts';
import type { VirtualClock } from '../../src/testing/virtual-clock.ts';

export interface Weather {
  /** What part of all requests and answers is lost, */
  readonly lost: number;
  /** how late a few of the others are, */
  readonly slowMs: Millis;
  /** and how often a process is held up when it should wake. */
  readonly heldUp: number;
}

const HELD_UP_MS_MAX = 30;

export class Registers {
  readonly #world: VirtualClock;
  readonly #random: Random;
  readonly #weather: Weather;
  readonly #texts = new Map<string, Found>();
  #revision = 0;
  /** How many swaps were carried out that nobody heard of. */
  unheard = 0;

  constructor(world: VirtualClock, random: Random, weather: Weather) {
    this.#world = world;
    this.#random = random;
    this.#weather = weather;
  }

  /** As one process reaches them: it gives up after so long. */
  server(deadlineMs: Millis): RegisterServer {
    return {
      swap: (key, revision, put) =>
        this.#travel(deadlineMs, () => {
          const found = this.#texts.get(key);
          if ((found?.revision ?? NO_REVISION) !== revision)
            return { isSame: false, found, isDoubtful: false };
          if (put) this.#texts.set(key, { text: put.text, revision: `${++this.#revision}` });
          return { isSame: true, revision: put ? `${this.#revision}` : revision };
        }),
      lease: () => this.#travel(deadlineMs, () => 'lease'),
      close() {},
    };
  }

  #travel<T extends Swapped | string>(deadlineMs: Millis, act: () => T): Promise<T> {
    return new Promise((done, failed) => {
      let isOver = false;
      const end = (tell: () => void): void => {
        if (!isOver) tell();
        isOver = true;
      };
      this.#after(deadlineMs, () => end(() => failed(new UnavailableError('registers'))));
      this.#way(() => {
        const answer = act(); // which may be after everybody has gone
        if (isOver) this.unheard++;
        this.#way(() => end(() => done(answer)));
      });
    });
  }

  #way(arrive: () => void): void {
    const { lost, slowMs } = this.#weather;
    if (this.#random() < lost) return;
    this.#after(this.#random() < 0.05 ? this.#random() * slowMs : 0.5 + this.#random() * 3, arrive);
  }

  #after(ms: Millis, act: () => void): void {
    this.#world.wakeAt(this.#world.now() + ms, act);
  }
}

/** A clock that is set and goes wrong, in a process that wakes late now and then. */
export function wrongClock(
  world: VirtualClock,
  { aheadMs, faster }: { readonly aheadMs: Millis; readonly faster: number },
  { heldUp }: Weather,
  random: Random,
): Clock {
  const rate = 1 + faster;
  const lateMs = (): Millis => random() * (random() < heldUp ? HELD_UP_MS_MAX : 1);
  return {
    now: () => world.now() * rate + aheadMs,
    wakeAt: (at, act) => world.wakeAt((at - aheadMs) / rate + lateMs(), act),
  };
}
