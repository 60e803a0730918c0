/**
 * One member of a pool: what it may use at this instant, from what the store has told it.
 *
 * It meets no store and no timer: requests come out, answers go in, and whoever carries them may lose, delay
 * or reorder them. Only the answer to the last request counts. What is less is used at once; what is more
 * from the second on that the store has named, and is claimed from the moment it is known.
 *
 * Time is the store's as far as it is known: an answer was made between the request and its arrival, so the
 * store's clock is ahead of ours by something between two bounds, which the next answers narrow and which widen
 * while nothing is heard. Where one second may be over and the next may not have begun, nothing is used: some tenths of a millisecond.
 */

import type { Millis } from '../../core/clock.ts';
import { Ahead } from '../../core/clock-offset.ts';
import { type Claim, NOTHING, type SyncAnswer, type SyncRequest } from './agreement.ts';

const SECOND_MS: Millis = 1000;

export interface MemberOptions {
  readonly id: string;
  /** How long it goes on with what it was told last if the store does not answer. */
  readonly holdMs: Millis;
}

/** What a member knows of its pool. */
export interface MemberView {
  readonly id: string;
  readonly claim: Claim;
  readonly active: number;
  readonly isAgreed: boolean;
  /** How long ago the store was heard; Infinity if never. */
  readonly ageMs: Millis;
}

export class PoolMember {
  readonly #options: MemberOptions;
  #using: Claim = NOTHING;
  /** More than that, from a second on that is yet to come. */
  #next: { readonly claim: Claim; readonly fromAt: Millis } | undefined;
  #seq = 0;
  #sentAt: Millis = 0;
  /** When the last request was sent that was answered. */
  #heardAt: Millis = -Infinity;
  #active = 0;
  #isAgreed = false;
  readonly #ahead = new Ahead();

  constructor(options: MemberOptions) {
    this.#options = options;
  }

  /** The next sync. Whatever was asked before is not waited for any more. */
  request(now: Millis): SyncRequest {
    this.#at(now);
    this.#sentAt = now;
    return { id: this.#options.id, seq: ++this.#seq, using: this.#next?.claim ?? this.#using };
  }

  /** The store's answer to a request; one to an older request changes nothing. */
  answered(seq: number, answer: SyncAnswer, now: Millis): void {
    if (seq !== this.#seq) return;
    const told = { from: answer.now, to: answer.now + (answer.unsureMs ?? 0) };
    this.#ahead.learn(told, this.#sentAt, now);
    this.#heardAt = this.#sentAt;
    this.#active = answer.active;
    this.#isAgreed = answer.isAgreed;
    this.#at(now);
    const { claim, fromAt } = answer;
    if (isMore(claim, this.#using)) this.#next = { claim, fromAt };
    else {
      this.#using = claim;
      this.#next = undefined;
    }
    this.#at(now);
  }

  /** What it may use now. */
  claim(now: Millis): Claim {
    this.#at(now);
    return this.#using;
  }

  /** Until when that is so, if nothing is heard. */
  claimTo(now: Millis): Millis {
    const heldTo = this.#heardAt + this.#options.holdMs;
    const nextAt = this.#next ? this.#ahead.reaches(this.#next.fromAt).surely : Infinity;
    return Math.min(nextAt, heldTo > now ? heldTo : Infinity);
  }

  /** Whether the store was heard lately enough to go by what it said. */
  isHeard(now: Millis): boolean {
    return now - this.#heardAt < this.#options.holdMs;
  }

  /** Uses nothing any more, until it is told anew. */
  forget(): void {
    this.#seq++; // an answer that is still on its way comes too late
    this.#heardAt = -Infinity;
    this.#using = NOTHING;
    this.#next = undefined;
    this.#isAgreed = false;
  }

  /**
   * How far the store's clock was surely ahead of ours when it was heard last; 0 if it never was. Rules count by
   * this: it stays as it is between two answers, so that time goes by for them at its usual pace.
   */
  get aheadMs(): Millis {
    return Number.isFinite(this.#ahead.least) ? this.#ahead.least : 0;
  }

  /** The next end of a second on the store's clock: from when on it may be over, and when it surely is. */
  secondEnd(now: Millis): readonly [from: Millis, to: Millis] {
    const { min } = this.#ahead.at(now);
    const endAt = (Math.floor((now + min) / SECOND_MS) + 1) * SECOND_MS;
    const { maybe, surely } = this.#ahead.reaches(endAt);
    return [maybe, surely];
  }

  /** Which second it is on the store's clock; undefined if it may be one or the other. */
  second(now: Millis): number | undefined {
    const { min, max } = this.#ahead.at(now);
    const second = Math.floor((now + min) / SECOND_MS);
    return Math.floor((now + max) / SECOND_MS) === second ? second : undefined;
  }

  view(now: Millis): MemberView {
    return {
      id: this.#options.id,
      claim: this.claim(now),
      active: this.#active,
      isAgreed: this.#isAgreed,
      ageMs: now - this.#heardAt,
    };
  }

  /** Brings it to an instant: what was to come has come, or what was held has been held for too long. */
  #at(now: Millis): void {
    if (this.#next && now >= this.#ahead.reaches(this.#next.fromAt).surely) {
      this.#using = this.#next.claim;
      this.#next = undefined;
    }
    if (now - this.#heardAt < this.#options.holdMs) return;
    this.#using = NOTHING;
    this.#next = undefined;
    this.#isAgreed = false;
  }
}

/** Whether one claim is more than another. */
function isMore(one: Claim, other: Claim): boolean {
  if (one.size === 0) return false;
  if (other.size === 0 || one.size < other.size) return true;
  return (
    one.size === other.size &&
    one.rank >= 0 &&
    (other.rank !== one.rank || other.round !== one.round)
  );
}
