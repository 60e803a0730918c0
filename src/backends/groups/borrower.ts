/**
 * Borrows tokens from other groups for keys with more demand than their group's bucket has.
 *
 *     calls ──▶ own bucket is low ──▶ demand, by group ──▶ one request per lender, with all keys
 *                      ▲                                         │
 *                      └────────── borrowed tokens ◀─────────────┘
 *
 * The demand is what was requested while the bucket was low: each process of a group covers its own calls. A lender that
 * gave nothing, or failed, gets the next request after an exponential back-off. The demand is divided among lenders with surplus.
 * While all are unavailable, the group uses its own fraction of the limit.
 *
 * Tokens in flight were taken at the lender, and count only if they arrive within the deadline. They fill a bucket only up
 * to the reserve level, above which other groups borrow, so nothing is borrowed twice. So all buckets and all tokens in
 * flight never hold more than all bursts plus one deadline of refill, whatever is lost, late or cut off. The overshoot
 * is bounded:
 *
 *     calls allowed in any span ≤ burst + rate × (span + deadline)
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import type { GroupLimit } from './limits.ts';
import {
  type BorrowRequest,
  type GroupTransport,
  lateReplyMessage,
  MAX_BORROW_REQUESTS,
} from './transport.ts';

/** Time to collect demand before the next request to a lender. */
const BATCH_WINDOW_MS: Millis = 20;
/** Requests in flight to one lender. Several, as a small bucket of the lender overflows while one is in flight. */
const MAX_REQUESTS_IN_FLIGHT = 8;
/** Back-off after a lender without surplus. */
const INITIAL_BACKOFF_MS: Millis = 50;
const MAX_BACKOFF_MS: Millis = 1000;

/** One lender as this process sees it. */
export interface LenderView {
  readonly group: string;
  /** Tokens that arrived from it in time. */
  readonly borrowed: number;
  readonly requests: number;
  readonly failures: number;
  /** Error of the last request, if it failed. */
  readonly reason?: string;
}

export class Borrower {
  readonly #lenders: readonly RemoteLender[];

  /** A loan that takes longer than `deadlineMs` is lost. */
  constructor(
    transport: GroupTransport,
    clock: Clock,
    groups: readonly string[],
    deadlineMs: Millis,
  ) {
    this.#lenders = groups.map((group) => new RemoteLender(group, transport, clock, deadlineMs));
  }

  /** Calls for so many tokens met a bucket that is low. */
  recordDemand(limit: GroupLimit, key: string, tokens: number): void {
    const withSurplus = this.#lenders.filter(({ hasSurplus }) => hasSurplus).length;
    const each = tokens / Math.max(1, withSurplus);
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
  tokens: number;
}

class RemoteLender {
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

  /** False after a reply without tokens, until the next one with tokens. */
  get hasSurplus(): boolean {
    return this.#backoffMs === 0;
  }

  recordDemand(limit: GroupLimit, key: string, tokens: number): void {
    const id = `${limit.name}\0${key}`;
    const pending = this.#demand.get(id);
    if (pending) pending.tokens += tokens;
    else if (this.#demand.size < MAX_BORROW_REQUESTS) this.#demand.set(id, { limit, key, tokens });
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
    const isBusy = this.#inFlight >= (this.hasSurplus ? MAX_REQUESTS_IN_FLIGHT : 1);
    if (isBusy || this.#cancel || this.#isClosed || this.#demand.size === 0) return;
    const at = this.#clock.now() + Math.max(BATCH_WINDOW_MS, this.#backoffMs);
    this.#cancel = schedule(this.#clock, at, () => void this.#sendRequest(), false);
  }

  async #sendRequest(): Promise<void> {
    this.#cancel = undefined;
    this.#inFlight++;
    const demand = [...this.#demand.values()];
    this.#demand = new Map();
    const requests: BorrowRequest[] = demand.map(({ limit, key, tokens }) => ({
      limit: limit.name,
      key,
      tokens: Math.ceil(Math.min(tokens, limit.reserveLevel)), // more would not fit
    }));
    const sentAt = this.#clock.now();
    this.#requests++;
    try {
      const reply = await this.#withDeadline(this.#transport.borrow(this.#group, requests), sentAt);
      this.#reason = undefined;
      this.#applyGrants(demand, clampGrants(reply, requests));
    } catch (error) {
      this.#failures++;
      this.#reason = errorMessageOf(error);
      this.#backOff();
    }
    this.#inFlight--;
    this.#scheduleRequest();
  }

  /** For any transport: one that never replies must not count as in flight, and a late reply is a failure. */
  async #withDeadline<T>(reply: Promise<T>, sentAt: Millis): Promise<T> {
    const deadlineAt = sentAt + this.#deadlineMs;
    const lateError = (): Error => new Error(lateReplyMessage(this.#deadlineMs));
    let cancel = (): void => {};
    const timeout = new Promise<never>((_, reject) => {
      cancel = schedule(this.#clock, deadlineAt, () => reject(lateError()), false);
    });
    try {
      const result = await Promise.race([reply, timeout]);
      if (this.#clock.now() > deadlineAt) throw lateError(); // a suspended process sees both at once
      return result;
    } finally {
      cancel();
    }
  }

  #applyGrants(demand: readonly PendingDemand[], grants: readonly number[]): void {
    const tokens = grants.reduce((sum, granted) => sum + granted, 0);
    if (tokens === 0) {
      this.#backOff();
      return;
    }
    this.#backoffMs = 0;
    this.#borrowed += tokens;
    for (const [n, { limit, key }] of demand.entries())
      if (grants[n] > 0) limit.credit(key, grants[n]);
  }

  #backOff(): void {
    this.#backoffMs = Math.min(MAX_BACKOFF_MS, Math.max(INITIAL_BACKOFF_MS, this.#backoffMs * 2));
  }
}

/** A lender's reply is untrusted: whole tokens, at most as many as requested. */
const clampGrants = (reply: readonly unknown[], requests: readonly BorrowRequest[]): number[] =>
  requests.map(({ tokens }, n) => {
    const granted = reply[n];
    return typeof granted === 'number' && granted > 0 ? Math.min(tokens, Math.floor(granted)) : 0;
  });
