/**
 * A call on several limiters: its costs are reserved in all of them or in none.
 *
 *     peek all ──▶ one refuses? ──▶ refusal of the longest wait
 *        │ no
 *        ▼
 *     reserve one by one ──▶ one refuses after all? ──▶ undo the earlier ones
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, WHEN_SETTLED } from '../core/decision.ts';
import type { SyncLimiter } from './sync-limiter.ts';
import type { CallResult } from './validate.ts';

/** A call on one component: computed once, however often it is checked. */
export interface ComponentCall {
  readonly limiter: SyncLimiter;
  readonly key: string;
  readonly cost: number;
  /** Maps the call's cost to the component's; what was used is mapped the same way. */
  readonly costOf: (cost: number) => number;
  /** The index of the call's partition or level, if the component has one of that name. */
  readonly partitionIndex: number | undefined;
}

/** A cost taken from a component and not recorded yet. */
export interface ComponentReservation {
  readonly call: ComponentCall;
  readonly reservedAt: Millis;
  readonly remaining: number;
}

export interface ComponentRefusal extends Denied {
  readonly by: ComponentCall;
}

type Denied = Extract<Decision, { verdict: 'deny' }>;

export const isRefused = (
  result: readonly ComponentReservation[] | ComponentReservation | ComponentRefusal,
): result is ComponentRefusal => 'by' in result;

type Cost = Pick<ComponentCall, 'cost' | 'costOf'>;

export const mergeCalls = <Call extends Cost>(one: Call, other: Cost): Call => ({
  ...one,
  cost: one.cost + other.cost,
  costOf: (cost) => one.costOf(cost) + other.costOf(cost),
});

export const usedFieldOf = (
  { costOf }: Cost,
  used: number | undefined,
): Pick<CallResult, 'used'> => (used === undefined ? {} : { used: costOf(used) });

export const hasWaiters = ({ limiter, key, partitionIndex }: ComponentCall): boolean =>
  limiter.scheduler.hasWaiters(key, partitionIndex);

export const peekCall = ({ limiter, key, cost, partitionIndex }: ComponentCall): Decision =>
  limiter.peekUnvalidated(key, cost, partitionIndex);

export const recordDecision = (
  { limiter, key, cost }: ComponentCall,
  decision: Decision,
  waitedMs: Millis = 0,
): void => limiter.recordDecision(key, cost, decision, waitedMs);

export const remainingOf = (decision: Decision): number =>
  decision.verdict === 'allow' ? decision.remaining : 0;

/** Reserves a call in every component, or in none: then returns the refusal with the longest wait. */
export function reserveAll(
  calls: readonly ComponentCall[],
  isWaiting = false,
): readonly ComponentReservation[] | ComponentRefusal {
  const refused = findRefusal(calls);
  if (isWaiting && refused?.by.limiter.countsRefusals) return refused; // a waiting call is not refused yet
  if (refused) {
    // The check runs although the peek refused: some rules count refused calls.
    const reserved = reserveOne(refused.by);
    if (isRefused(reserved)) return reserved;
    unreserve(reserved); // it has opened since
  }
  const reservations: ComponentReservation[] = [];
  try {
    for (const call of calls) {
      const reserved = reserveOne(call);
      if (isRefused(reserved)) {
        reservations.forEach(unreserve);
        return reserved;
      }
      reservations.push(reserved);
    }
  } catch (error) {
    reservations.forEach(unreserve);
    throw error;
  }
  return reservations;
}

function reserveOne(call: ComponentCall): ComponentReservation | ComponentRefusal {
  const reservedAt = call.limiter.clock.now();
  const decision = call.limiter.reserve(call.key, call.cost, reservedAt, call.partitionIndex);
  if (decision.verdict === 'deny') return { by: call, ...decision };
  return { call, reservedAt, remaining: remainingOf(decision) };
}

function unreserve({ call, reservedAt }: ComponentReservation): void {
  call.limiter.unreserve(call.key, call.cost, reservedAt, call.partitionIndex);
}

/** True for a slot of a limit on calls in flight. */
export const isInFlight = ({ call: { limiter, key } }: ComponentReservation): boolean =>
  limiter.inspect(key).inFlight !== undefined;

/** Returns a reservation after its tick has ended, so a waiter may fit now. */
export function release(reservation: ComponentReservation): void {
  unreserve(reservation);
  const { limiter, key } = reservation.call;
  limiter.scheduler.wake(key);
}

/** Peeks at every component and returns the refusal with the longest wait. */
export function findRefusal(calls: readonly ComponentCall[]): ComponentRefusal | undefined {
  let longest: ComponentRefusal | undefined;
  for (const call of calls) {
    const decision = peekCall(call);
    if (decision.verdict !== 'deny') continue;
    if (!longest || isLonger(decision.retryAfterMs, longest.retryAfterMs))
      longest = { by: call, ...decision };
  }
  return longest;
}

/** A known wait counts as longer than a wait for a call to settle. */
export const isLonger = (a: Millis, b: Millis): boolean =>
  b === WHEN_SETTLED ? a !== WHEN_SETTLED : a > b;
