/**
 * One key: a register that everybody swaps, and those of this process who want something of it.
 *
 *     asks ──▶ decided here, all that wait at once, on what was seen last ──▶ swap, if the revision is still the same
 *                  ▲                                                            │ it is not: this is what is there
 *                  └────────────────────────────────────────────────────────────┘
 *
 * What changes nothing is told if it was looked at since it was asked, and costs no write. So every answer is one of the
 * latest revision. Where others are at it too, a random moment passes between swaps. Who gave up meanwhile is not told: what
 * was taken for it is lost.
 *
 * Nobody hears of a swap whose outcome is not known. If it has happened, what it took is gone; if it has not and happens
 * later, it finds another revision, or makes the next swap find one. Where a swap was tried twice, as the first server
 * did not answer, one that is lost may have been lost to itself: asks are decided anew, gifts are lost.
 */

import { alarm, type Clock, endOfTick, type Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Random } from '../../core/random.ts';
import type { Policy, State } from '../../policies/policy.ts';
import type { Clocks } from './clock-offsets.ts';
import { INSTANT_OF, type Moment } from './delayed-rule.ts';
import type { Leases } from './leases.ts';
import { type Record, recordOf, textOf } from './register-value.ts';
import type { Trips } from './rtt-estimator.ts';
import type { Turns } from './semaphore.ts';
import { NO_REVISION, type RegisterServer, type Swapped } from './store.ts';

/** One who wants something: it reads the numbers, may change them, and is told what it made of them. */
export interface Errand {
  act(state: State, moment: Moment): unknown;
  resolve(told: unknown): void;
  reject(error: unknown): void;
  /** False once nobody waits for it. */
  isWaiting: boolean;
  /** True if it gives something: done twice it would give twice, and so it had better not be done. */
  readonly isGift: boolean;
}

/** What all registers of a limit have in common. */
export interface Desk {
  readonly policy: Policy;
  readonly server: RegisterServer;
  readonly clock: Clock;
  readonly random: Random;
  /** By what name others know our clock. */
  readonly id: string;
  readonly clocks: Clocks;
  readonly leases: Leases;
  readonly trips: Trips;
  readonly turns: Turns;
  /** The server has answered, or it has not. */
  heard(): void;
  lost(error: unknown): void;
}

/** The most that is decided in one swap. */
const ERRANDS_MAX = 512;

/** For so many swaps there are rivals, once one was lost. */
const RIVALS_MAX = 8;

/** What was seen so long ago may have changed since; where there are rivals, a trip is long ago. */
const FRESH_MS: Millis = 10_000;

/** Whoever lost often waits for so many trips at most. */
const PAUSE_TRIPS_MAX = 4;

/** How often those who know of no rivals let others in: else they would never know. */
const YIELDS = 1 / 8;

export class Register {
  readonly #key: string;
  readonly #desk: Desk;
  readonly #instant: number;
  #queue: Errand[] = [];
  #isServed = false;
  /** Above zero if others seem to swap it at the same time: swaps to be won until that is forgotten. */
  #rivals = 0;
  #wonAt: Millis = -Infinity;
  /** When it was surely as it was seen last. */
  #seenAt: Millis = -Infinity;
  /** What was seen last, */
  #revision = NO_REVISION;
  #record: Record | undefined;
  /** and its instant on our clock, as early as it could be told so far. */
  #instantHere: Millis = Infinity;

  constructor(key: string, desk: Desk) {
    this.#key = key;
    this.#desk = desk;
    this.#instant = INSTANT_OF[desk.policy.kind];
  }

  get isIdle(): boolean {
    return !this.#isServed;
  }

  /** Whatever is wanted in one tick is decided together; what comes during a swap, in the next. */
  add(errand: Errand): void {
    this.#queue.push(errand);
    if (this.#isServed) return;
    this.#isServed = true;
    endOfTick(() => this.#serve());
  }

  async #serve(): Promise<void> {
    while (this.#queue.length > 0) {
      await this.#yield();
      await this.#desk.turns.take(() => this.#serveFront());
    }
    this.#isServed = false;
  }

  async #serveFront(): Promise<void> {
    const errands = this.#queue.splice(0, ERRANDS_MAX);
    try {
      await this.#decide(errands);
    } catch (error) {
      this.#desk.lost(error);
      for (const { reject } of errands) reject(error);
    }
  }

  async #decide(errands: readonly Errand[]): Promise<void> {
    const { clock, trips, policy, leases } = this.#desk;
    const since = clock.now();
    for (let lost = 0; ; ) {
      const asking = errands.filter(({ isWaiting }) => isWaiting);
      if (asking.length === 0) return;
      if (this.#isOld()) await this.#look();
      const state = this.#stateHere();
      const moment = { now: clock.now(), tripMs: trips.mostMs };
      let isChanged = false;
      const told = asking.map((errand) => {
        const before = state.slice();
        const one = errand.act(state, moment);
        isChanged ||= state.some((number, n) => number !== before[n]);
        return one;
      });
      // A place that one gave back and another took is written, too: where it lies is news to the others.
      if (!isChanged) {
        if (this.#seenAt >= since) return tellAll(asking, told);
        await this.#look();
        continue;
      }
      const goesAt = policy.forgetAt(state, 0);
      const lease = leases.until(goesAt);
      // Asking for a lease takes a while, and so does letting others pass: then it is decided again.
      if (lease === undefined) {
        await leases.ask(goesAt);
        continue;
      }
      const swapped = await this.#put(state, moment.now, lease);
      if (swapped.isSame) return tellAll(asking, told);
      if (swapped.isDoubtful) loseGifts(asking);
      if (++lost > 1) await this.#pause(Math.min(lost, PAUSE_TRIPS_MAX));
    }
  }

  /** Looking costs less than a swap that is lost, and more than none. */
  #isOld(): boolean {
    const { clock, trips } = this.#desk;
    return clock.now() - this.#seenAt > (this.#rivals > 0 ? trips.meanMs : FRESH_MS);
  }

  async #look(): Promise<void> {
    const { server, clock } = this.#desk;
    const askedAt = clock.now();
    this.#hear(await server.swap(this.#key, this.#revision), askedAt);
  }

  /** Puts the numbers in place of what was seen last, unless somebody else was faster. */
  async #put(state: State, now: Millis, lease: string): Promise<Swapped> {
    const { server, clock, id, trips, leases } = this.#desk;
    const record = { by: id, at: now, numbers: [...state] };
    const put = { text: textOf(record), lease };
    const swapped = await server.swap(this.#key, this.#revision, put).catch((error: unknown) => {
      leases.forget(); // it may be the lease that is gone
      throw error;
    });
    trips.seen(clock.now() - now);
    this.#hear(swapped, now);
    if (!swapped.isSame) {
      this.#rivals = RIVALS_MAX;
      return swapped;
    }
    this.#remember(swapped.revision, record);
    this.#wonAt = clock.now();
    this.#rivals = Math.max(0, this.#rivals - 1);
    return swapped;
  }

  /** What is there was so after it was asked, whenever that was heard. */
  #hear(swapped: Swapped, askedAt: Millis): void {
    const { policy, clocks, clock } = this.#desk;
    this.#desk.heard();
    this.#seenAt = askedAt;
    if (swapped.isSame) return;
    const { found } = swapped;
    const record = found && recordOf(found.text, policy.width, this.#key);
    if (record) clocks.heard(record.by, record.at, clock.now());
    this.#remember(found?.revision ?? NO_REVISION, record);
  }

  #remember(revision: string, record: Record | undefined): void {
    this.#revision = revision;
    this.#record = record;
    this.#instantHere = Infinity;
  }

  /** The numbers on our clock: what happened on another's happened at the latest it can have. */
  #stateHere(): State {
    const { policy, clock, clocks, id } = this.#desk;
    const state = new Float64Array(policy.width);
    if (!this.#record) {
      policy.start(state, 0, clock.now());
      return state;
    }
    const { by, numbers } = this.#record;
    const theirs = numbers[this.#instant];
    state.set(numbers);
    const here = by === id ? theirs : clocks.reaches(by, theirs);
    this.#instantHere = Math.min(this.#instantHere, here);
    state[this.#instant] = this.#instantHere;
    return state;
  }

  /** Who has won is the first to know what is there, and would win for ever: others are let in between. */
  async #yield(): Promise<void> {
    const { clock, random, trips } = this.#desk;
    const isWinning = clock.now() - this.#wonAt < trips.meanMs;
    if (isWinning && (this.#rivals > 0 || random() < YIELDS)) await this.#pause(1);
  }

  /** For a random part of so many trips. */
  #pause(mostTrips: number): Promise<void> {
    const { clock, random, trips } = this.#desk;
    const at = clock.now() + trips.meanMs * mostTrips * random();
    return new Promise((over) => {
      alarm(clock, at, over, false);
    });
  }
}

function tellAll(errands: readonly Errand[], told: readonly unknown[]): void {
  for (const [n, errand] of errands.entries()) errand.resolve(told[n]);
}

function loseGifts(errands: readonly Errand[]): void {
  const error = new UnavailableError('etcd', 'nobody knows whether it was given');
  for (const { isGift, reject } of errands) if (isGift) reject(error);
}
