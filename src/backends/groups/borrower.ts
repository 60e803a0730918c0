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

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import type { GroupLimit } from './limits.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

/** Keys that are stolen for at the same time, from one group: who comes later waits for its group's own. */
const MAX_WANTS = 1000;

/** So long it is waited for more wants before a group is asked again, */
const BATCH_WINDOW_MS: Millis = 20;
/** whether it has answered or not: what a small bucket cannot hold is lost while an answer is on its way. */
const MAX_ASKING = 8;
/** And so long if it had nothing, at first and at most. */
const INITIAL_BACKOFF_MS: Millis = 50;
const MAX_AGAIN_MS: Millis = 1000;

/** What is known of another group. */
export interface LenderView {
  readonly group: string;
  /** Units that came from there in time. */
  readonly borrowed: number;
  readonly requests: number;
  readonly failures: number;
  /** Why it could not be reached, if the last request failed. */
  readonly reason?: string;
}

export interface BorrowerOptions {
  /** Whom to steal from. */
  readonly lenders: readonly string[];
  /** What takes longer counts as lost. */
  readonly deadlineMs: Millis;
}

export class Borrower {
  readonly #lenders: readonly Lender[];

  constructor(transport: GroupTransport, clock: Clock, { lenders, deadlineMs }: BorrowerOptions) {
    this.#lenders = lenders.map((group) => new Lender(group, transport, clock, deadlineMs));
  }

  /** So much was asked for, of a bucket that is low. */
  recordDemand(limit: GroupLimit, key: string, units: number): void {
    const withSurplus = this.#lenders.filter(({ hasSurplus }) => hasSurplus).length;
    const each = units / Math.max(1, withSurplus);
    for (const lender of this.#lenders) lender.recordDemand(limit, key, each);
  }

  view(): LenderView[] {
    return this.#lenders.map((lender) => lender.view());
  }

  close(): void {
    for (const lender of this.#lenders) lender.close();
  }
}

interface PendingDemand {
  readonly limit: GroupLimit;
  readonly key: string;
  units: number;
}

/** One group that is stolen from. */
class Lender {
  readonly #group: string;
  readonly #transport: GroupTransport;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  #demand = new Map<string, PendingDemand>();
  #backoffMs: Millis = 0;
  #inFlight = 0;
  #isClosed = false;
  #cancel: (() => void) | undefined;
  #borrowed = 0;
  #requests = 0;
  #failures = 0;
  #reason: string | undefined;

  constructor(group: string, transport: GroupTransport, clock: Clock, deadlineMs: Millis) {
    this.#group = group;
    this.#transport = transport;
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
  }

  /** False once it had nothing to give, until it has. */
  get hasSurplus(): boolean {
    return this.#backoffMs === 0;
  }

  recordDemand(limit: GroupLimit, key: string, units: number): void {
    const id = `${limit.name}\0${key}`;
    const own = this.#demand.get(id);
    if (own) own.units += units;
    else if (this.#demand.size < MAX_WANTS) this.#demand.set(id, { limit, key, units });
    this.#scheduleRequest();
  }

  view(): LenderView {
    return {
      group: this.#group,
      borrowed: this.#borrowed,
      requests: this.#requests,
      failures: this.#failures,
      ...(this.#reason !== undefined && { reason: this.#reason }),
    };
  }

  close(): void {
    this.#isClosed = true;
    this.#cancel?.();
  }

  #scheduleRequest(): void {
    const isBusy = this.#inFlight >= (this.hasSurplus ? MAX_ASKING : 1);
    if (isBusy || this.#cancel || this.#isClosed || this.#demand.size === 0) return;
    const at = this.#clock.now() + Math.max(BATCH_WINDOW_MS, this.#backoffMs);
    this.#cancel = schedule(this.#clock, at, () => void this.#sendRequest(), false);
  }

  async #sendRequest(): Promise<void> {
    this.#cancel = undefined;
    this.#inFlight++;
    const wanted = [...this.#demand.values()];
    this.#demand = new Map();
    const wants: BorrowRequest[] = wanted.map(({ limit, key, units }) => ({
      limit: limit.name,
      key,
      units: Math.ceil(Math.min(units, limit.reserveLevel)), // more would not fit
    }));
    const sentAt = this.#clock.now();
    this.#requests++;
    try {
      const told = await this.#withDeadline(this.#transport.borrow(this.#group, wants), sentAt);
      this.#reason = undefined;
      this.#applyGrants(wanted, clampGrants(told, wants));
    } catch (error) {
      this.#failures++;
      this.#reason = errorMessageOf(error);
      this.#backOff();
    }
    this.#inFlight--;
    this.#scheduleRequest();
  }

  /** Whatever the door does: one that never answers must not keep a place, and a late answer is none. */
  async #withDeadline<T>(answer: Promise<T>, sentAt: Millis): Promise<T> {
    const byAt = sentAt + this.#deadlineMs;
    const late = (): Error => new Error(`it took longer than ${this.#deadlineMs} ms`);
    let cancel = (): void => {};
    const tooLate = new Promise<never>((_, giveUp) => {
      cancel = schedule(this.#clock, byAt, () => giveUp(late()), false);
    });
    try {
      const told = await Promise.race([answer, tooLate]);
      if (this.#clock.now() > byAt) throw late(); // a process that stood still finds both at once
      return told;
    } finally {
      cancel();
    }
  }

  #applyGrants(wanted: readonly PendingDemand[], given: readonly number[]): void {
    const units = given.reduce((sum, own) => sum + own, 0);
    if (units === 0) {
      this.#backOff();
      return;
    }
    this.#backoffMs = 0;
    this.#borrowed += units;
    for (const [n, { limit, key }] of wanted.entries())
      if (given[n] > 0) limit.credit(key, given[n]);
  }

  #backOff(): void {
    this.#backoffMs = Math.min(MAX_AGAIN_MS, Math.max(INITIAL_BACKOFF_MS, this.#backoffMs * 2));
  }
}

/** Never more than was wanted, whatever the other side says. */
const clampGrants = (told: readonly unknown[], wants: readonly BorrowRequest[]): number[] =>
  wants.map(({ units }, n) => {
    const own = told[n];
    return typeof own === 'number' && own > 0 ? Math.min(units, Math.floor(own)) : 0;
  });
