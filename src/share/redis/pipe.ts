/**
 * The way to Redis and back: whatever is asked in one tick travels as one call.
 *
 *     ask ask ask ──▶ end of the tick ──▶ EVALSHA, all of them ──▶ answers, each to its own
 *
 * A call to a script costs Redis more than deciding a dozen asks, and the client more than Redis; so
 * calls are what must be few. Every call has a deadline. One that misses it, or fails, opens the
 * breaker, and until Redis answers again nobody waits for it.
 */

import { alarm, type Clock, endOfTick, type Millis } from '../../clock.ts';
import { UnavailableError } from '../../errors.ts';
import type { Formula } from '../../policy/policy.ts';
import { Breaker } from './breaker.ts';
import { argumentsOf, type Op } from './call.ts';
import type { Connection, Reply } from './client.ts';
import { SCRIPT } from './script.ts';
import { slotOf } from './slot.ts';

/** The most asks in one call: Redis does nothing else while it runs one. */
const ASKS_MAX = 512;

/** One thing to do, and who waits for its answer: `take` reads it where it stands in the reply. */
interface Errand {
  readonly key: string;
  readonly letter: string;
  readonly rest: readonly (string | number)[];
  /** How many answers it takes. */
  readonly width: number;
  readonly resolve: (answer: Told) => void;
  readonly reject: (error: unknown) => void;
}

/** The answers to one errand, and the time on Redis's clock. */
export interface Told {
  readonly reply: Reply;
  readonly at: number;
  readonly now: Millis;
}

export class Pipe {
  readonly #connection: Connection;
  readonly #formulas: readonly Formula[];
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly #breaker: Breaker;
  #waiting: Errand[] = [];

  constructor(
    connection: Connection,
    formulas: readonly Formula[],
    settings: {
      readonly clock: Clock;
      readonly deadlineMs: Millis;
      readonly onReach: (isReachable: boolean, why: unknown) => void;
    },
  ) {
    this.#connection = connection;
    this.#formulas = formulas;
    this.#clock = settings.clock;
    this.#deadlineMs = settings.deadlineMs;
    this.#breaker = new Breaker(settings.clock, () => this.#call([], []), settings.onReach);
  }

  get isReachable(): boolean {
    return !this.#breaker.isOpen;
  }

  /** Rejects with an UnavailableError if there is no answer in time. */
  send(key: string, letter: string, rest: Errand['rest'], width: number): Promise<Told> {
    if (this.#breaker.isOpen) return Promise.reject(new UnavailableError('Redis'));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ key, letter, rest, width, resolve, reject });
      if (this.#waiting.length === 1) endOfTick(() => this.#flush());
    });
  }

  stop(): void {
    this.#breaker.stop();
  }

  #flush(): void {
    const errands = this.#waiting;
    this.#waiting = [];
    for (const together of this.#grouped(errands)) {
      for (let from = 0; from < together.length; from += ASKS_MAX) {
        this.#carry(together.slice(from, from + ASKS_MAX));
      }
    }
  }

  /** On a cluster, only what lives in one slot may travel together. */
  #grouped(errands: readonly Errand[]): Iterable<readonly Errand[]> {
    if (!this.#connection.isCluster) return [errands];
    const bySlot = new Map<number, Errand[]>();
    for (const errand of errands) {
      const slot = slotOf(errand.key);
      const others = bySlot.get(slot);
      if (others) others.push(errand);
      else bySlot.set(slot, [errand]);
    }
    return bySlot.values();
  }

  async #carry(errands: readonly Errand[]): Promise<void> {
    const places = new Map<string, number>();
    const ops = errands.map(({ key, letter, rest }): Op => {
      let place = places.get(key);
      if (place === undefined) {
        place = places.size + 1;
        places.set(key, place);
      }
      return [letter, place, ...rest];
    });
    try {
      const reply = await this.#call([...places.keys()], ops);
      const now = Number(reply[0]);
      let at = 1;
      for (const { width, resolve } of errands) {
        resolve({ reply, at, now });
        at += width;
      }
    } catch (error) {
      this.#breaker.open(error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { reject } of errands) reject(unavailable);
    }
  }

  #call(keys: readonly string[], ops: readonly Op[]): Promise<Reply> {
    const args = argumentsOf(this.#formulas, ops);
    return new Promise((resolve, reject) => {
      const cancel = alarm(
        this.#clock,
        this.#clock.now() + this.#deadlineMs,
        () => reject(new UnavailableError('Redis', `no answer within ${this.#deadlineMs} ms`)),
        true,
      );
      this.#connection.run(SCRIPT, keys, args).then(resolve, reject).finally(cancel);
    });
  }
}
