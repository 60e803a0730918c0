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
import { Breaker } from './breaker.ts';
import type { Told } from './call.ts';
import type { Connection, Reply } from './client.ts';
import { slotOf } from './slot.ts';

/** The most asks in one call: Redis does nothing else while it runs one. */
const ASKS_MAX = 512;

/** One thing to ask, and who waits for the answer. */
interface Errand {
  readonly key: string;
  readonly text: string;
  readonly resolve: (answer: Answered) => void;
  readonly reject: (error: unknown) => void;
}

/** An answer, and the time it was given on Redis's clock. */
export interface Answered {
  readonly told: Told;
  readonly at: Millis;
}

/** What decides: plain asks alone need less of it, and a shorter script is a faster one. */
export interface Scripts {
  readonly whole: string;
  readonly plain: string;
}

export class Pipe {
  readonly #connection: Connection;
  readonly #scripts: Scripts;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly #breaker: Breaker;
  #waiting: Errand[] = [];

  constructor(
    connection: Connection,
    scripts: Scripts,
    settings: {
      readonly clock: Clock;
      readonly deadlineMs: Millis;
      readonly onReach: (isReachable: boolean, why: unknown) => void;
    },
  ) {
    this.#connection = connection;
    this.#scripts = scripts;
    this.#clock = settings.clock;
    this.#deadlineMs = settings.deadlineMs;
    this.#breaker = new Breaker(
      settings.clock,
      () => this.#call(scripts.whole, [], []),
      settings.onReach,
    );
  }

  get isReachable(): boolean {
    return !this.#breaker.isOpen;
  }

  /** Rejects with an UnavailableError if there is no answer in time. */
  send(key: string, text: string): Promise<Answered> {
    if (this.#breaker.isOpen) return Promise.reject(new UnavailableError('Redis'));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ key, text, resolve, reject });
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
    const texts = errands.map(({ text }) => text);
    const isUniform = texts.every((text) => text === texts[0]);
    const isPlain = texts.every((text) => text.startsWith('a'));
    const script = isPlain ? this.#scripts.plain : this.#scripts.whole;
    try {
      const keys = errands.map(({ key }) => key);
      const reply = await this.#call(script, keys, isUniform ? [texts[0]] : texts);
      const at = Number(reply[0]);
      for (let n = 0; n < errands.length; n++) errands[n].resolve({ told: reply[n + 1], at });
    } catch (error) {
      this.#breaker.open(error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { reject } of errands) reject(unavailable);
    }
  }

  #call(script: string, keys: readonly string[], texts: readonly string[]): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const giveUp = (): void =>
        reject(new UnavailableError('Redis', `no answer within ${this.#deadlineMs} ms`));
      const cancel = alarm(this.#clock, this.#clock.now() + this.#deadlineMs, giveUp, true);
      this.#connection
        .run(script, keys, ['', ...texts])
        .then(resolve, reject)
        .finally(cancel);
    });
  }
}
