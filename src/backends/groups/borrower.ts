/**
 * Steals for keys that want more than their group has.
 *
 *     calls ──▶ own bucket is low ──▶ wants, by group ──▶ one request to each, all wants in it
 *                      ▲                                         │
 *                      └────────── what was given ◀──────────────┘
 *
 * As much is wanted as was asked for while the bucket was low: each process of a group covers what it is asked for itself.
 * A group that gave nothing, or could not be reached, is asked again later, twice as late each time; what is wanted is shared
 * among those that gave. While all are out of reach the group lives on its own part.
 *
 * What is on its way was taken where it comes from, and counts only if it arrives within the deadline. It fills a bucket only up to the line above
 * which others steal, so that nothing is stolen twice. So at any instant there is in all buckets and
 * on the way no more than all bursts and what has flowed in during one deadline, whatever is lost, late or cut off:
 *
 *     calls let through in any span ≤ burst + rate × (span + deadline)
 */

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { reasonOf } from '../../core/errors.ts';
import type { GroupLimit } from './limits.ts';
import type { Door, Want } from './transport.ts';

/** Keys that are stolen for at the same time, from one group: who comes later waits for its group's own. */
const WANTS_MAX = 1000;

/** So long it is waited for more wants before a group is asked again, */
const GATHER_MS: Millis = 20;
/** whether it has answered or not: what a small bucket cannot hold is lost while an answer is on its way. */
const ASKING_MAX = 8;
/** And so long if it had nothing, at first and at most. */
const AGAIN_MS_FIRST: Millis = 50;
const AGAIN_MS_MAX: Millis = 1000;

/** What is known of another group. */
export interface DonorView {
  readonly group: string;
  /** Units that came from there in time. */
  readonly stolen: number;
  readonly requests: number;
  readonly failures: number;
  /** Why it could not be reached, if the last request failed. */
  readonly reason?: string;
}

export interface ThiefOptions {
  /** Whom to steal from. */
  readonly groups: readonly string[];
  /** What takes longer counts as lost. */
  readonly deadlineMs: Millis;
}

export class Thief {
  readonly #donors: readonly Donor[];

  constructor(door: Door, clock: Clock, { groups, deadlineMs }: ThiefOptions) {
    this.#donors = groups.map((group) => new Donor(group, door, clock, deadlineMs));
  }

  /** So much was asked for, of a bucket that is low. */
  want(limit: GroupLimit, key: string, units: number): void {
    const generous = this.#donors.filter(({ isGenerous }) => isGenerous).length;
    const each = units / Math.max(1, generous);
    for (const donor of this.#donors) donor.want(limit, key, each);
  }

  view(): DonorView[] {
    return this.#donors.map((donor) => donor.view());
  }

  close(): void {
    for (const donor of this.#donors) donor.close();
  }
}

interface Wanted {
  readonly limit: GroupLimit;
  readonly key: string;
  units: number;
}

/** One group that is stolen from. */
class Donor {
  readonly #group: string;
  readonly #door: Door;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  #wanted = new Map<string, Wanted>();
  #againMs: Millis = 0;
  #asking = 0;
  #isClosed = false;
  #cancel: (() => void) | undefined;
  #stolen = 0;
  #requests = 0;
  #failures = 0;
  #reason: string | undefined;

  constructor(group: string, door: Door, clock: Clock, deadlineMs: Millis) {
    this.#group = group;
    this.#door = door;
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
  }

  /** False once it had nothing to give, until it has. */
  get isGenerous(): boolean {
    return this.#againMs === 0;
  }

  want(limit: GroupLimit, key: string, units: number): void {
    const id = `${limit.name}\0${key}`;
    const own = this.#wanted.get(id);
    if (own) own.units += units;
    else if (this.#wanted.size < WANTS_MAX) this.#wanted.set(id, { limit, key, units });
    this.#askSoon();
  }

  view(): DonorView {
    return {
      group: this.#group,
      stolen: this.#stolen,
      requests: this.#requests,
      failures: this.#failures,
      ...(this.#reason !== undefined && { reason: this.#reason }),
    };
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel?.();
  }

  #askSoon(): void {
    const isBusy = this.#asking >= (this.isGenerous ? ASKING_MAX : 1);
    if (isBusy || this.#cancel || this.#isClosed || this.#wanted.size === 0) return;
    const at = this.#clock.now() + Math.max(GATHER_MS, this.#againMs);
    this.#cancel = alarm(this.#clock, at, () => void this.#ask(), false);
  }

  async #ask(): Promise<void> {
    this.#cancel = undefined;
    this.#asking++;
    const wanted = [...this.#wanted.values()];
    this.#wanted = new Map();
    const wants: Want[] = wanted.map(({ limit, key, units }) => ({
      limit: limit.name,
      key,
      units: Math.ceil(Math.min(units, limit.line)), // more would not fit
    }));
    const sentAt = this.#clock.now();
    this.#requests++;
    try {
      const told = await this.#inTime(this.#door.steal(this.#group, wants), sentAt);
      this.#reason = undefined;
      this.#take(wanted, givenIn(told, wants));
    } catch (error) {
      this.#failures++;
      this.#reason = reasonOf(error);
      this.#askLess();
    }
    this.#asking--;
    this.#askSoon();
  }

  /** Whatever the door does: one that never answers must not keep a place, and a late answer is none. */
  async #inTime<T>(answer: Promise<T>, sentAt: Millis): Promise<T> {
    const byAt = sentAt + this.#deadlineMs;
    const late = (): Error => new Error(`it took longer than ${this.#deadlineMs} ms`);
    let cancel = (): void => {};
    const tooLate = new Promise<never>((_, giveUp) => {
      cancel = alarm(this.#clock, byAt, () => giveUp(late()), false);
    });
    try {
      const told = await Promise.race([answer, tooLate]);
      if (this.#clock.now() > byAt) throw late(); // a process that stood still finds both at once
      return told;
    } finally {
      cancel();
    }
  }

  #take(wanted: readonly Wanted[], given: readonly number[]): void {
    const units = given.reduce((sum, own) => sum + own, 0);
    if (units === 0) {
      this.#askLess();
      return;
    }
    this.#againMs = 0;
    this.#stolen += units;
    for (const [n, { limit, key }] of wanted.entries()) if (given[n] > 0) limit.gain(key, given[n]);
  }

  #askLess(): void {
    this.#againMs = Math.min(AGAIN_MS_MAX, Math.max(AGAIN_MS_FIRST, this.#againMs * 2));
  }
}

/** Never more than was wanted, whatever the other side says. */
const givenIn = (told: readonly unknown[], wants: readonly Want[]): number[] =>
  wants.map(({ units }, n) => {
    const own = told[n];
    return typeof own === 'number' && own > 0 ? Math.min(units, Math.floor(own)) : 0;
  });
