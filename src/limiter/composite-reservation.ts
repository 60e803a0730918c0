/**
 * A call as several limiters see it: what it wants is held of all of them, or of none.
 *
 * First everybody is looked at, and only if nobody would refuse is anything taken. Should one refuse
 * all the same, what the others gave is given back.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, WHEN_SETTLED } from '../core/decision.ts';
import type { SyncLimiter } from './sync-limiter.ts';
import type { CallResult } from './validate.ts';
import type { QueuePosition } from './wait-queue.ts';

/** A call as one part sees it: worked out once, however often it has to ask. */
export interface ComponentCall {
  readonly limiter: SyncLimiter;
  readonly key: string;
  readonly cost: number;
  /** How the part counts: what was used in the end is counted the same way. */
  readonly costOf: (cost: number) => number;
  /** The place of the partition it counts against, if the part has one of that name. */
  readonly partitionIndex: number | undefined;
}

/** What a part gave, before anybody knows of it. */
export interface ComponentReservation {
  readonly call: ComponentCall;
  readonly reservedAt: Millis;
  readonly remaining: number;
}

/** A refusal, and whose. */
export interface ComponentRefusal {
  readonly by: ComponentCall;
  readonly retryAfterMs: Millis;
}

export const isRefused = (
  tried: readonly ComponentReservation[] | ComponentReservation | ComponentRefusal,
): tried is ComponentRefusal => 'by' in tried;

export const mergeCalls = (
  one: ComponentCall,
  other: Pick<ComponentCall, 'cost' | 'costOf'>,
): ComponentCall => ({
  ...one,
  cost: one.cost + other.cost,
  costOf: (cost) => one.costOf(cost) + other.costOf(cost),
});

export const usedFieldOf = (
  { costOf }: ComponentCall,
  used: number | undefined,
): Pick<CallResult, 'used'> => (used === undefined ? {} : { used: costOf(used) });

export const hasWaiters = ({ limiter, key, partitionIndex }: ComponentCall): boolean =>
  limiter.hasWaitersInPartition(key, partitionIndex);

export const hasEarlierWaiter = (
  { limiter, key, partitionIndex }: ComponentCall,
  position: QueuePosition,
): boolean => limiter.hasEarlierWaiter(key, partitionIndex, position);

export const peekCall = ({ limiter, key, cost, partitionIndex }: ComponentCall): Decision =>
  limiter.peekUnvalidated(key, cost, partitionIndex);

export const recordDecision = ({ limiter, key, cost }: ComponentCall, decision: Decision): void =>
  limiter.recordDecision(key, cost, decision, 0);

export const remainingOf = (decision: Decision): number =>
  decision.verdict === 'allow' ? decision.remaining : 0;

/** Holds what it wants of every part, or nothing: then says who refuses longest. */
export function reserveAll(
  calls: readonly ComponentCall[],
): readonly ComponentReservation[] | ComponentRefusal {
  const refused = findRefusal(calls);
  if (refused) {
    // It is asked all the same: whoever is refused has been here, and some rules take note of it.
    const own = reserveOne(refused.by);
    if (isRefused(own)) return own;
    unreserve(own); // it has opened since
  }
  const held: ComponentReservation[] = [];
  for (const call of calls) {
    const own = reserveOne(call);
    if (isRefused(own)) {
      held.forEach(unreserve);
      return own;
    }
    held.push(own);
  }
  return held;
}

function reserveOne(call: ComponentCall): ComponentReservation | ComponentRefusal {
  const at = call.limiter.clock.now();
  const decision = call.limiter.reserve(call.key, call.cost, at, call.partitionIndex);
  if (decision.verdict === 'deny') return { by: call, retryAfterMs: decision.retryAfterMs };
  return { call, reservedAt: at, remaining: remainingOf(decision) };
}

function unreserve({ call, reservedAt }: ComponentReservation): void {
  call.limiter.unreserve(call.key, call.cost, reservedAt, call.partitionIndex);
}

export function findRefusal(calls: readonly ComponentCall[]): ComponentRefusal | undefined {
  let worst: ComponentRefusal | undefined;
  for (const call of calls) {
    const decision = peekCall(call);
    if (decision.verdict !== 'deny') continue;
    const { retryAfterMs } = decision;
    if (!worst || isLonger(retryAfterMs, worst.retryAfterMs)) worst = { by: call, retryAfterMs };
  }
  return worst;
}

/** A wait of known length is worth more to know than one for a call to settle. */
const isLonger = (a: Millis, b: Millis): boolean =>
  b === WHEN_SETTLED ? a !== WHEN_SETTLED : a > b;
