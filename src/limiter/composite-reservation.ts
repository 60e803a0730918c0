/**
 * A call as several limiters see it: what it wants is held of all of them, or of none.
 *
 * First everybody is looked at, and only if nobody would refuse is anything taken. Should one refuse
 * all the same, what the others gave is given back.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, WHEN_SETTLED } from '../core/decision.ts';
import type { Engine } from './sync-limiter.ts';
import type { Result } from './validate.ts';
import type { Rank } from './wait-queue.ts';

/** A call as one part sees it: worked out once, however often it has to ask. */
export interface Call {
  readonly engine: Engine;
  readonly key: string;
  readonly cost: number;
  /** How the part counts: what was used in the end is counted the same way. */
  readonly costOf: (cost: number) => number;
  /** The place of the partition it counts against, if the part has one of that name. */
  readonly part: number | undefined;
}

/** What a part gave, before anybody knows of it. */
export interface Held {
  readonly call: Call;
  readonly at: Millis;
  readonly remaining: number;
}

/** A refusal, and whose. */
export interface Refused {
  readonly by: Call;
  readonly retryAfterMs: Millis;
}

export const isRefused = (tried: readonly Held[] | Held | Refused): tried is Refused =>
  'by' in tried;

export const together = (one: Call, other: Pick<Call, 'cost' | 'costOf'>): Call => ({
  ...one,
  cost: one.cost + other.cost,
  costOf: (cost) => one.costOf(cost) + other.costOf(cost),
});

export const usedOf = ({ costOf }: Call, used: number | undefined): Pick<Result, 'used'> =>
  used === undefined ? {} : { used: costOf(used) };

export const hasLine = ({ engine, key, part }: Call): boolean => engine.isWaitedFor(key, part);

export const isBefore = ({ engine, key, part }: Call, rank: Rank): boolean =>
  engine.isBefore(key, part, rank);

export const look = ({ engine, key, cost, part }: Call): Decision => engine.look(key, cost, part);

export const note = ({ engine, key, cost }: Call, decision: Decision): void =>
  engine.note(key, cost, decision, 0);

export const remainingAfter = (decision: Decision): number =>
  decision.verdict === 'allow' ? decision.remaining : 0;

/** Holds what it wants of every part, or nothing: then says who refuses longest. */
export function holdAll(calls: readonly Call[]): readonly Held[] | Refused {
  const refused = wouldRefuse(calls);
  if (refused) {
    // It is asked all the same: whoever is refused has been here, and some rules take note of it.
    const own = hold(refused.by);
    if (isRefused(own)) return own;
    release(own); // it has opened since
  }
  const held: Held[] = [];
  for (const call of calls) {
    const own = hold(call);
    if (isRefused(own)) {
      held.forEach(release);
      return own;
    }
    held.push(own);
  }
  return held;
}

function hold(call: Call): Held | Refused {
  const at = call.engine.clock.now();
  const decision = call.engine.hold(call.key, call.cost, at, call.part);
  if (decision.verdict === 'deny') return { by: call, retryAfterMs: decision.retryAfterMs };
  return { call, at, remaining: remainingAfter(decision) };
}

function release({ call, at }: Held): void {
  call.engine.release(call.key, call.cost, at, call.part);
}

export function wouldRefuse(calls: readonly Call[]): Refused | undefined {
  let worst: Refused | undefined;
  for (const call of calls) {
    const decision = look(call);
    if (decision.verdict !== 'deny') continue;
    const { retryAfterMs } = decision;
    if (!worst || isLonger(retryAfterMs, worst.retryAfterMs)) worst = { by: call, retryAfterMs };
  }
  return worst;
}

/** A wait of known length is worth more to know than one for a call to settle. */
const isLonger = (a: Millis, b: Millis): boolean =>
  b === WHEN_SETTLED ? a !== WHEN_SETTLED : a > b;
