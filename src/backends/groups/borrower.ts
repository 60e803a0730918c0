/**
 * Borrows tokens from other groups for keys with more demand than their group's bucket has.
 *
 *     calls ──▶ own bucket is low ──▶ demand, by group ──▶ one request per lender, with all keys
 *                      ▲                                         │
 *                      └────────── borrowed tokens ◀─────────────┘
 *
 * The demand is the number of tokens requested while the bucket was low: each process of a group covers its own calls.
 * A lender that granted nothing, or failed, gets the next request after exponential back-off. The demand is divided
 * among lenders with surplus. While all are unavailable, the group uses its own fraction of the limit.
 *
 * Tokens in flight were taken at the lender, and count only if they arrive within the deadline. They fill a bucket only
 * up to the reserve level, above which other groups borrow, so nothing is borrowed twice. So all buckets and all tokens
 * in flight together never hold more than all bursts plus one deadline of refill, with any loss, delay or partition.
 * The overshoot is bounded:
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
/** The most requests in flight to one lender. Several, because a lender's small bucket overflows during one request. */
const MAX_REQUESTS_IN_FLIGHT = 8;
/** Back-off after a lender without surplus. */
const INITIAL_BACKOFF_MS: Millis = 50;
const MAX_BACKOFF_MS: Millis = 1000;

/** This process's view of one lender. */
export interface LenderView {
  readonly group: string;
  /** Tokens of this lender that arrived in time. */
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

export type Borrower = ReturnType<typeof createBorrower>;

/** Borrows from one other group. A loan that arrives after `deadlineMs` is lost. */
export function createBorrower(
  group: string,
  transport: GroupTransport,
  clock: Clock,
  deadlineMs: Millis,
) {
  const counts = { borrowed: 0, requests: 0, failures: 0 };
  let demand = new Map<string, PendingDemand>();
  let backoffMs: Millis = 0;
  let inFlight = 0;
  let isClosed = false;
  let cancel: (() => void) | undefined;
  let reason: string | undefined;

  /** False after a reply without tokens, until the next one with tokens. */
  const hasSurplus = (): boolean => backoffMs === 0;
  const backOff = (): void => {
    backoffMs = Math.min(MAX_BACKOFF_MS, Math.max(INITIAL_BACKOFF_MS, backoffMs * 2));
  };

  const scheduleRequest = (): void => {
    const isBusy = inFlight >= (hasSurplus() ? MAX_REQUESTS_IN_FLIGHT : 1);
    if (isBusy || cancel || isClosed || demand.size === 0) return;
    const at = clock.now() + Math.max(BATCH_WINDOW_MS, backoffMs);
    cancel = schedule(clock, at, () => void sendRequest(), false);
  };

  const sendRequest = async (): Promise<void> => {
    cancel = undefined;
    const sent = [...demand.values()];
    demand = new Map();
    const requests: BorrowRequest[] = sent.map(({ limit, key, tokens }) => ({
      limit: limit.name,
      key,
      tokens: Math.ceil(Math.min(tokens, limit.reserveLevel)), // more tokens would not fit
    }));
    inFlight++;
    counts.requests++;
    try {
      const reply = await replyInTime(transport.borrow(group, requests));
      reason = undefined;
      applyGrants(sent, clampGrants(reply, requests));
    } catch (error) {
      counts.failures++;
      reason = errorMessageOf(error);
      backOff();
    }
    inFlight--;
    scheduleRequest();
  };

  /** For any transport: a request without a reply must not stay in flight, and a late reply is a failure. */
  const replyInTime = async <T>(reply: Promise<T>): Promise<T> => {
    const deadlineAt = clock.now() + deadlineMs;
    const isDone = await completesWithin(clock, deadlineMs, reply, false);
    if (isDone && clock.now() <= deadlineAt) return reply; // a suspended process gets the reply and the timer at once
    throw new Error(lateReplyMessage(deadlineMs));
  };

  const applyGrants = (sent: readonly PendingDemand[], grants: readonly number[]): void => {
    const tokens = grants.reduce((sum, granted) => sum + granted, 0);
    if (tokens > 0) backoffMs = 0;
    else backOff();
    counts.borrowed += tokens;
    for (const [n, { limit, key }] of sent.entries())
      if (grants[n] > 0) limit.credit(key, grants[n]);
  };

  return {
    hasSurplus,
    recordDemand(limit: GroupLimit, key: string, tokens: number): void {
      const id = `${limit.name}\0${key}`;
      const pending = demand.get(id);
      if (pending) pending.tokens += tokens;
      else if (demand.size < MAX_BORROW_REQUESTS) demand.set(id, { limit, key, tokens });
      scheduleRequest();
    },
    view: (): LenderView => ({ group, ...counts, ...(reason !== undefined && { reason }) }),
    close(): void {
      isClosed = true;
      cancel?.();
    },
  };
}

/** Validates a lender's reply, which is untrusted: whole tokens, at most as many as requested. */
const clampGrants = (reply: readonly unknown[], requests: readonly BorrowRequest[]): number[] =>
  requests.map(({ tokens }, n) => {
    const granted = reply[n];
    return typeof granted === 'number' && granted > 0 ? Math.min(tokens, Math.floor(granted)) : 0;
  });
