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
import { ClockOffset } from '../../core/clock-offset.ts';
import { type Claim, NO_CLAIM, type SyncRequest, type SyncResponse } from './agreement.ts';

const SECOND_MS: Millis = 1000;

export interface MemberOptions {
  readonly id: string;
  /** How long it goes on with what it was told last if the store does not answer. */
  readonly staleForMs: Millis;
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
  #activeClaim: Claim = NO_CLAIM;
  /** More than that, from a second on that is yet to come. */
  #pendingClaim: { readonly claim: Claim; readonly effectiveAt: Millis } | undefined;
  #seq = 0;
  #requestSentAt: Millis = 0;
  /** When the last request was sent that was answered. */
  #lastContactAt: Millis = -Infinity;
  #active = 0;
  #isAgreed = false;
  readonly #clockOffset = new ClockOffset();

  constructor(options: MemberOptions) {
    this.#options = options;
  }

  /** The next sync. Whatever was asked before is not waited for any more. */
  createRequest(now: Millis): SyncRequest {
    this.#advanceTo(now);
    this.#requestSentAt = now;
    return {
      id: this.#options.id,
      seq: ++this.#seq,
      using: this.#pendingClaim?.claim ?? this.#activeClaim,
    };
  }

  /** The store's answer to a request; one to an older request changes nothing. */
  applyResponse(seq: number, answer: SyncResponse, now: Millis): void {
    if (seq !== this.#seq) return;
    const told = { from: answer.now, to: answer.now + (answer.clockUncertaintyMs ?? 0) };
    this.#clockOffset.observe(told, this.#requestSentAt, now);
    this.#lastContactAt = this.#requestSentAt;
    this.#active = answer.active;
    this.#isAgreed = answer.isAgreed;
    this.#advanceTo(now);
    const { claim, effectiveAt } = answer;
    if (isLargerClaim(claim, this.#activeClaim)) this.#pendingClaim = { claim, effectiveAt };
    else {
      this.#activeClaim = claim;
      this.#pendingClaim = undefined;
    }
    this.#advanceTo(now);
  }

  /** What it may use now. */
  claim(now: Millis): Claim {
    this.#advanceTo(now);
    return this.#activeClaim;
  }

  /** Until when that is so, if nothing is heard. */
  claimValidUntil(now: Millis): Millis {
    const heldTo = this.#lastContactAt + this.#options.staleForMs;
    const nextAt = this.#pendingClaim
      ? this.#clockOffset.localTimesOf(this.#pendingClaim.effectiveAt).surely
      : Infinity;
    return Math.min(nextAt, heldTo > now ? heldTo : Infinity);
  }

  /** Whether the store was heard lately enough to go by what it said. */
  hasRecentResponse(now: Millis): boolean {
    return now - this.#lastContactAt < this.#options.staleForMs;
  }

  /** Uses nothing any more, until it is told anew. */
  reset(): void {
    this.#seq++; // an answer that is still on its way comes too late
    this.#lastContactAt = -Infinity;
    this.#activeClaim = NO_CLAIM;
    this.#pendingClaim = undefined;
    this.#isAgreed = false;
  }

  /**
   * How far the store's clock was surely ahead of ours when it was heard last; 0 if it never was. Rules count by
   * this: it stays as it is between two answers, so that time goes by for them at its usual pace.
   */
  get clockOffsetMs(): Millis {
    return Number.isFinite(this.#clockOffset.lastMin) ? this.#clockOffset.lastMin : 0;
  }

  /** The next end of a second on the store's clock: from when on it may be over, and when it surely is. */
  nextSecondBoundary(now: Millis): readonly [from: Millis, to: Millis] {
    const { min } = this.#clockOffset.boundsAt(now);
    const endAt = (Math.floor((now + min) / SECOND_MS) + 1) * SECOND_MS;
    const { maybe, surely } = this.#clockOffset.localTimesOf(endAt);
    return [maybe, surely];
  }

  /** Which second it is on the store's clock; undefined if it may be one or the other. */
  storeSecond(now: Millis): number | undefined {
    const { min, max } = this.#clockOffset.boundsAt(now);
    const second = Math.floor((now + min) / SECOND_MS);
    return Math.floor((now + max) / SECOND_MS) === second ? second : undefined;
  }

  view(now: Millis): MemberView {
    return {
      id: this.#options.id,
      claim: this.claim(now),
      active: this.#active,
      isAgreed: this.#isAgreed,
      ageMs: now - this.#lastContactAt,
    };
  }

  /** Brings it to an instant: what was to come has come, or what was held has been held for too long. */
  #advanceTo(now: Millis): void {
    if (
      this.#pendingClaim &&
      now >= this.#clockOffset.localTimesOf(this.#pendingClaim.effectiveAt).surely
    ) {
      this.#activeClaim = this.#pendingClaim.claim;
      this.#pendingClaim = undefined;
    }
    if (now - this.#lastContactAt < this.#options.staleForMs) return;
    this.#activeClaim = NO_CLAIM;
    this.#pendingClaim = undefined;
    this.#isAgreed = false;
  }
}

/** Whether one claim is more than another. */
function isLargerClaim(one: Claim, other: Claim): boolean {
  if (one.size === 0) return false;
  if (other.size === 0 || one.size < other.size) return true;
  return (
    one.size === other.size &&
    one.rank >= 0 &&
    (other.rank !== one.rank || other.round !== one.round)
  );
}
