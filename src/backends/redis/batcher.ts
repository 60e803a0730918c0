/**
 * The way to Redis and back: whatever is asked in one tick travels as one call.
 *
 *     ask ask ask ──▶ end of the tick ──▶ EVALSHA, all of them ──▶ answers, each to its own
 *
 * A call to a script costs Redis more than deciding a dozen asks, and the client more than Redis; so
 * calls are what must be few. Every call has a deadline. One that misses it, or fails, opens the
 * breaker, and until Redis answers again nobody waits for it. On a cluster each slot has a breaker of
 * its own: a node that is away takes only its own keys with it, and is asked for one of them again.
 *
 * A call also says on Redis's clock until when somebody waits for it. One that was held up on the way,
 * by a Redis that stood still or a client that kept it, then takes nothing for those who have gone.
 */

import { atEndOfTurn, type Clock, endOfTick, type Millis } from '../../core/clock.ts';
import { Outstanding } from '../../core/deadline-set.ts';
import { UnavailableError } from '../../core/errors.ts';
import { Breaker, Refuser } from '../circuit-breaker.ts';
import type { Connection, Reply } from './client.ts';
import type { Told } from './reply.ts';
import { SLOTS, slotOf } from './slot.ts';

/** The most asks in one call: Redis does nothing else while it runs one. */
const ASKS_MAX = 512;

/** The most asks on their way at once. Those beyond wait here, where waiting for one another is not being late. */
const UNDERWAY_MAX = 16 * ASKS_MAX;

/** When so many slots of a cluster are out of reach, all of them are taken to be. */
const SLOTS_OUT_MAX = 64;

/** One thing to ask, and who waits for the answer. */
interface Errand {
  readonly key: string;
  /** Where the key lives on a cluster; 0 elsewhere. */
  readonly slot: number;
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

/** What is told and not asked (settled, hits, left): it is heard even if it comes late. */
const isTold = ({ text }: Errand): boolean => /^[shx]/.test(text);

/** A call under way. */
interface Call {
  readonly heldAt: Millis;
  readonly giveUp: () => unknown;
}

const isLate = ([first]: Reply): boolean => String(first).startsWith('late ');

const timeIn = ([first]: Reply): Millis => Number(String(first).replace('late ', ''));

export class Pipe {
  readonly #connection: Connection;
  readonly #scripts: Scripts;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  /**
   * How far Redis's clock is ahead of ours: never less, and more by no more than a trip. One for each slot
   * of a cluster, whose nodes have clocks of their own.
   */
  readonly #aheadMs: Float64Array;
  /** Those that are not answered yet. */
  readonly #calls: Outstanding<Call>;
  readonly #onReach: (isReachable: boolean, why: unknown) => void;
  /** The slots that are out of reach. */
  readonly #out = new Map<number, Breaker>();
  #waiting: Errand[] = [];
  /** What travels together, in the order it goes. */
  #packed: (readonly Errand[])[] = [];
  #underway = 0;
  readonly #refuser = new Refuser();

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
    this.#onReach = settings.onReach;
    const { clock, deadlineMs } = settings;
    this.#calls = new Outstanding(clock, deadlineMs, ({ giveUp }) => giveUp());
    this.#aheadMs = new Float64Array(connection.isCluster ? SLOTS : 1).fill(Number.NaN);
  }

  get isReachable(): boolean {
    return this.#out.size === 0;
  }

  /** Rejects with an UnavailableError if there is no answer in time. */
  send(key: string, text: string): Promise<Answered> {
    const slot = this.#connection.isCluster ? slotOf(key) : 0;
    if (this.#isOut(slot)) return this.#refuser.refuse(new UnavailableError('Redis'));
    return new Promise((resolve, reject) => {
      this.#waiting.push({ key, slot, text, resolve, reject });
      if (this.#waiting.length === 1) endOfTick(() => this.#flush());
    });
  }

  stop(): void {
    for (const breaker of this.#out.values()) breaker.stop();
  }

  #isOut(slot: number): boolean {
    return this.#out.size > 0 && (this.#out.has(slot) || this.#out.size >= SLOTS_OUT_MAX);
  }

  /** Nobody is sent there until this very key could be decided again. */
  #lose({ key, slot }: Errand, why: unknown): void {
    if (this.#isOut(slot)) return;
    const isFirst = this.#out.size === 0;
    const changed = (isBack: boolean): void => {
      if (isBack && this.#out.delete(slot) && this.#out.size === 0) this.#onReach(true, undefined);
    };
    const breaker = new Breaker(
      this.#clock,
      () => this.#call(slot, this.#scripts.whole, [key], ['p']),
      changed,
    );
    this.#out.set(slot, breaker);
    breaker.open(why);
    if (isFirst) this.#onReach(false, why);
  }

  #flush(): void {
    const errands = this.#waiting;
    this.#waiting = [];
    for (const together of this.#grouped(errands)) {
      for (let from = 0; from < together.length; from += ASKS_MAX) {
        this.#packed.push(together.slice(from, from + ASKS_MAX));
      }
    }
    this.#depart();
  }

  #depart(): void {
    let sent = 0;
    for (; sent < this.#packed.length && this.#underway < UNDERWAY_MAX; sent++) {
      const errands = this.#packed[sent];
      if (this.#isOut(errands[0].slot)) {
        for (const { reject } of errands) reject(new UnavailableError('Redis'));
        continue;
      }
      this.#underway += errands.length;
      this.#carry(errands).then(() => {
        this.#underway -= errands.length;
        if (this.#packed.length > 0) this.#depart();
      });
    }
    this.#packed = this.#packed.slice(sent);
  }

  /** On a cluster, only what lives in one slot may travel together. */
  #grouped(errands: readonly Errand[]): Iterable<readonly Errand[]> {
    if (!this.#connection.isCluster) return [errands];
    const bySlot = new Map<number, Errand[]>();
    for (const errand of errands) {
      const others = bySlot.get(errand.slot);
      if (others) others.push(errand);
      else bySlot.set(errand.slot, [errand]);
    }
    return bySlot.values();
  }

  async #carry(errands: readonly Errand[], isAgain = false): Promise<void> {
    const texts = errands.map(({ text }) => text);
    const isUniform = texts.every((text) => text === texts[0]);
    const isPlain = texts.every((text) => text.startsWith('a'));
    const script = isPlain ? this.#scripts.plain : this.#scripts.whole;
    try {
      const keys = errands.map(({ key }) => key);
      const reply = await this.#call(errands[0].slot, script, keys, isUniform ? [texts[0]] : texts);
      if (isLate(reply)) return await this.#carryAgain(errands, isAgain);
      const at = Number(reply[0]);
      for (let n = 0; n < errands.length; n++) errands[n].resolve({ told: reply[n + 1], at });
    } catch (error) {
      this.#lose(errands[0], error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { reject } of errands) reject(unavailable);
    }
  }

  /** Too late and yet in time: Redis's clock was stepped. Now it is known, and those who ask try again. */
  async #carryAgain(errands: readonly Errand[], isAgain: boolean): Promise<void> {
    if (isAgain) throw new UnavailableError('Redis', 'its clock runs away');
    for (const errand of errands) if (isTold(errand)) errand.resolve({ told: 0, at: Number.NaN });
    const asking = errands.filter((errand) => !isTold(errand));
    if (asking.length > 0) await this.#carry(asking, true);
  }

  #call(
    slot: number,
    script: string,
    keys: readonly string[],
    texts: readonly string[],
  ): Promise<Reply> {
    const since = this.#clock.now();
    const by = since + this.#aheadMs[slot] + this.#deadlineMs;
    const args = [Number.isNaN(by) ? '' : `by ${by}`, ...texts];
    return new Promise((resolve, reject) => {
      const late = (): void =>
        reject(new UnavailableError('Redis', `no answer within ${this.#deadlineMs} ms`));
      // If it was this process that was busy, the answer is there and is read before the turn is over.
      const giveUp = (): unknown => atEndOfTurn(late);
      const call = { heldAt: since, giveUp };
      this.#calls.add(call);
      this.#connection.run(script, keys, args).then(
        (reply) => {
          this.#calls.remove(call);
          this.#aheadMs[slot] = timeIn(reply) - since;
          resolve(reply);
        },
        (error) => {
          this.#calls.remove(call);
          reject(error);
        },
      );
    });
  }
}
