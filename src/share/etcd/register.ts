/**
 * One key: a register that everybody swaps, and those of this process who want something of it.
 *
 *     asks ──▶ decided here, all that wait at once, on what was seen last ──▶ swap, if the revision is still the same
 *                  ▲                                                            │ it is not: this is what is there
 *                  └────────────────────────────────────────────────────────────┘
 *
 * What changes nothing is only looked up, so every answer is one of the latest revision; it costs no write. Whoever loses a
 * swap waits a random moment before the next. Who gave up meanwhile is not told: what was taken for it is lost.
 *
 * Nobody hears of a swap whose outcome is not known. If it has happened, what it took is gone; if it has not and happens
 * later, it finds another revision, or makes the next swap find one.
 */

import { alarm, type Clock, endOfTick, type Millis } from '../../clock.ts';
import type { Policy, State } from '../../policy/policy.ts';
import type { Random } from '../../random.ts';
import type { Clocks } from './clocks.ts';
import type { Leases } from './leases.ts';
import { type Record, recordOf, textOf } from './record.ts';
import { INSTANT_OF, type Moment } from './rule.ts';
import { type Found, NO_REVISION, type RegisterServer, type Swapped } from './server.ts';
import type { Trips } from './trips.ts';

/** One who wants something: it reads the numbers, may change them, and is told what it made of them. */
export interface Errand {
  act(state: State, moment: Moment): unknown;
  resolve(told: unknown): void;
  reject(error: unknown): void;
  /** False once nobody waits for it. */
  isWaiting: boolean;
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
  /** The server has answered, or it has not. */
  heard(): void;
  lost(error: unknown): void;
}

/** The most that is decided in one swap. */
const ERRANDS_MAX = 512;

/** How long whoever lost waits at most: a trip, twice as long each time, and no longer than this. */
const PAUSE_MS_MAX: Millis = 200;

export class Register {
  readonly #key: string;
  readonly #desk: Desk;
  readonly #instant: number;
  #queue: Errand[] = [];
  #isServed = false;
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
      const errands = this.#queue.splice(0, ERRANDS_MAX);
      try {
        await this.#decide(errands);
      } catch (error) {
        this.#desk.leases.forget();
        this.#desk.lost(error);
        for (const { reject } of errands) reject(error);
      }
    }
    this.#isServed = false;
  }

  async #decide(errands: readonly Errand[]): Promise<void> {
    const { clock, trips } = this.#desk;
    for (let lost = 0; ; lost++) {
      const asking = errands.filter(({ isWaiting }) => isWaiting);
      if (asking.length === 0) return;
      const before = this.#stateHere();
      const state = before.slice();
      const moment = { now: clock.now(), tripMs: trips.mostMs };
      const told = asking.map((errand) => errand.act(state, moment));
      const isChanged = state.some((number, n) => number !== before[n]);
      const swapped = await this.#swap(isChanged ? state : undefined, moment.now);
      this.#desk.heard();
      if (swapped.isSame) {
        for (const [n, errand] of asking.entries()) errand.resolve(told[n]);
        return;
      }
      const isFirst = this.#revision === NO_REVISION;
      this.#see(swapped.found);
      if (!isFirst && isChanged) await this.#pause(lost);
    }
  }

  /** Puts the numbers in place of what was seen last, or looks whether it is still there. */
  async #swap(state: State | undefined, now: Millis): Promise<Swapped> {
    const { server, clock, id, leases, trips, policy } = this.#desk;
    if (!state) return server.swap(this.#key, this.#revision);
    const lease = await leases.until(policy.forgetAt(state, 0));
    const record = { by: id, at: now, numbers: [...state] };
    const sentAt = clock.now();
    const swapped = await server.swap(this.#key, this.#revision, { text: textOf(record), lease });
    trips.seen(clock.now() - sentAt);
    if (swapped.isSame) this.#remember(swapped.revision, record);
    return swapped;
  }

  #see(found: Found | undefined): void {
    if (!found) {
      this.#remember(NO_REVISION, undefined);
      return;
    }
    const { policy, clocks, clock } = this.#desk;
    const record = recordOf(found.text, policy.width, this.#key);
    clocks.heard(record.by, record.at, clock.now());
    this.#remember(found.revision, record);
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

  #pause(lost: number): Promise<void> {
    const { clock, random, trips } = this.#desk;
    const mostMs = Math.min(PAUSE_MS_MAX, trips.meanMs * 2 ** Math.min(lost, 10));
    return new Promise((over) => {
      alarm(clock, clock.now() + mostMs * random(), over, false);
    });
  }
}
