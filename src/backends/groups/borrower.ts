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
import { completesWithin, lateReplyMessage } from '../../core/deadline.ts';
import { errorMessageOf } from '../../core/errors.ts';
import type { GroupLimit } from './limits.ts';
import { type BorrowRequest, type GroupTransport, MAX_BORROW_REQUESTS } from './transport.ts';

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

interface PendingDemand {
  readonly limit: GroupLimit;
  readonly key: string;
  tokens: number;
}

/** Borrows from one other group. A loan that takes longer than `deadlineMs` is lost. */
export class Borrower {
  readonly #transport: GroupTransport;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  #demand = new Map<string, PendingDemand>();
  #backoffMs: Millis = 0;
  #inFlight = 0;
  #isClosed = false;
  #cancel: (() => void) | undefined;
  readonly #view: { -readonly [Name in keyof LenderView]: LenderView[Name] };

  constructor(group: string, transport: GroupTransport, clock: Clock, deadlineMs: Millis) {
    this.#view = { group, borrowed: 0, requests: 0, failures: 0 };
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
    return { ...this.#view };
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
    this.#view.requests++;
    try {
      const reply = await this.#replyInTime(this.#transport.borrow(this.#view.group, requests));
      delete this.#view.reason;
      this.#applyGrants(demand, clampGrants(reply, requests));
    } catch (error) {
      this.#view.failures++;
      this.#view.reason = errorMessageOf(error);
      this.#backOff();
    }
    this.#inFlight--;
    this.#scheduleRequest();
  }

  /** For any transport: one that never replies must not count as in flight, and a late reply is a failure. */
  async #replyInTime<T>(reply: Promise<T>): Promise<T> {
    const deadlineAt = this.#clock.now() + this.#deadlineMs;
    const isDone = await completesWithin(this.#clock, this.#deadlineMs, reply, false);
    if (isDone && this.#clock.now() <= deadlineAt) return reply; // a suspended process sees both at once
    throw new Error(lateReplyMessage(this.#deadlineMs));
  }

  #applyGrants(demand: readonly PendingDemand[], grants: readonly number[]): void {
    const tokens = grants.reduce((sum, granted) => sum + granted, 0);
    if (tokens === 0) {
      this.#backOff();
      return;
    }
    this.#backoffMs = 0;
    this.#view.borrowed += tokens;
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
