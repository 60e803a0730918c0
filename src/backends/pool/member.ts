/**
 * One member of a pool (sans-I/O): determines the claim that it may use at an instant.
 *
 * Requests come out and responses go in; the transport may lose, delay or reorder them. Only the response to the last
 * request counts. A smaller claim is used at once. A larger claim is used from the second that the store names, and is
 * reported as soon as it is known.
 *
 * A member that was suspended for `memberTimeout` uses nothing until the next response: the store may have given its
 * part to others.
 *
 * Time is the store's, as far as it is known. A response was made between its request and its arrival, so the store's
 * clock is ahead by an offset between two bounds. Responses narrow the bounds; silence widens them. Where one second
 * may be over and the next may not have begun, nothing is used: for some tenths of a millisecond.
 */

import type { Millis } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import { type Claim, NO_CLAIM, type SyncRequest, type SyncResponse } from './agreement.ts';

const SECOND_MS: Millis = 1000;

export interface MemberOptions {
  readonly id: string;
  /** How long the last claim is used without a response of the store. */
  readonly staleForMs: Millis;
  /** The store drops a member after this time of silence. */
  readonly memberTimeoutMs: Millis;
}

export interface MemberView {
  readonly id: string;
  readonly claim: Claim;
  readonly active: number;
  readonly isAgreed: boolean;
  /** Time since the last answered request; Infinity if there is none. */
  readonly ageMs: Millis;
}

export class PoolMember {
  readonly #options: MemberOptions;
  #activeClaim: Claim = NO_CLAIM;
  /** A larger claim that takes effect in a later second. */
  #pendingClaim: { readonly claim: Claim; readonly effectiveAt: Millis } | undefined;
  #seq = 0;
  #requestSentAt: Millis = 0;
  /** Send time of the last answered request. */
  #lastContactAt: Millis = -Infinity;
  #isAnswered = true;
  /** Time at which the last request was found to be unanswered. */
  #lastFailureAt: Millis = -Infinity;
  #active = 0;
  #isAgreed = false;
  readonly #clockOffset = new ClockOffset();

  constructor(options: MemberOptions) {
    this.#options = options;
  }

  /** Creates the next sync. Responses to earlier requests are ignored from now on. */
  createRequest(now: Millis): SyncRequest {
    this.#advanceTo(now);
    if (!this.#isAnswered) this.#lastFailureAt = now;
    this.#isAnswered = false;
    this.#requestSentAt = now;
    return {
      id: this.#options.id,
      seq: ++this.#seq,
      using: this.#pendingClaim?.claim ?? this.#activeClaim,
    };
  }

  /** Applies the response to a request; a response to an earlier request changes nothing. */
  applyResponse(seq: number, response: SyncResponse, now: Millis): void {
    if (seq !== this.#seq) return;
    const serverTime = {
      from: response.now,
      to: response.now + (response.clockUncertaintyMs ?? 0),
    };
    this.#clockOffset.observe(serverTime, this.#requestSentAt, now);
    this.#lastContactAt = this.#requestSentAt;
    this.#isAnswered = true;
    this.#active = response.active;
    this.#isAgreed = response.isAgreed;
    this.#advanceTo(now);
    const { claim, effectiveAt } = response;
    if (isLargerClaim(claim, this.#activeClaim)) this.#pendingClaim = { claim, effectiveAt };
    else {
      this.#activeClaim = claim;
      this.#pendingClaim = undefined;
    }
    this.#advanceTo(now);
  }

  claim(now: Millis): Claim {
    this.#advanceTo(now);
    return this.#activeClaim;
  }

  /** The time until which the claim holds without another response. */
  claimValidUntil(now: Millis): Millis {
    const staleAt = this.#staleAt;
    const nextAt = this.#pendingClaim
      ? this.#clockOffset.localTimesOf(this.#pendingClaim.effectiveAt).surely
      : Infinity;
    return Math.min(nextAt, staleAt > now ? staleAt : Infinity);
  }

  hasRecentResponse(now: Millis): boolean {
    return now - this.#lastContactAt < this.#options.staleForMs;
  }

  /** Releases the claim until the next response. */
  reset(): void {
    this.#seq++; // invalidates a response in flight
    this.#lastContactAt = -Infinity;
    this.#activeClaim = NO_CLAIM;
    this.#pendingClaim = undefined;
    this.#isAgreed = false;
  }

  /**
   * Lower bound of the store's clock offset at the last response; 0 before the first. Policies use it: it is constant
   * between two responses, so their time passes at its usual rate.
   */
  get clockOffsetMs(): Millis {
    return Number.isFinite(this.#clockOffset.lastMin) ? this.#clockOffset.lastMin : 0;
  }

  /** The next end of a second on the store's clock: from when it may be over, and from when it certainly is. */
  nextSecondBoundary(now: Millis): readonly [from: Millis, to: Millis] {
    const { min } = this.#clockOffset.boundsAt(now);
    const endAt = (Math.floor((now + min) / SECOND_MS) + 1) * SECOND_MS;
    const { maybe, surely } = this.#clockOffset.localTimesOf(endAt);
    return [maybe, surely];
  }

  /** The current second on the store's clock; undefined if it is ambiguous. */
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

  /**
   * The time at which the claim lapses without a response. A member that neither received a response nor failed to
   * reach the store for `memberTimeout` was suspended: the store may have given its part to others.
   */
  get #staleAt(): Millis {
    const { staleForMs, memberTimeoutMs } = this.#options;
    const awakeAt = Math.max(this.#lastContactAt, this.#lastFailureAt);
    return Math.min(this.#lastContactAt + staleForMs, awakeAt + memberTimeoutMs);
  }

  /** Activates a pending claim that is due, and drops a stale claim. */
  #advanceTo(now: Millis): void {
    if (
      this.#pendingClaim &&
      now >= this.#clockOffset.localTimesOf(this.#pendingClaim.effectiveAt).surely
    ) {
      this.#activeClaim = this.#pendingClaim.claim;
      this.#pendingClaim = undefined;
    }
    if (now < this.#staleAt) return;
    this.#activeClaim = NO_CLAIM;
    this.#pendingClaim = undefined;
    this.#isAgreed = false;
  }
}

function isLargerClaim(one: Claim, other: Claim): boolean {
  if (one.size === 0) return false;
  if (other.size === 0 || one.size < other.size) return true;
  return (
    one.size === other.size &&
    one.rank >= 0 &&
    (other.rank !== one.rank || other.round !== one.round)
  );
}
