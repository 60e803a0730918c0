/**
 * Finds the change that a settled call made to a learnt limit, for the event `limit-changed`.
 *
 * Compares the key's state before and after the call. A pace can also end between two calls, because a check lifts a
 * pace that is no longer needed. Keys with a pace are therefore remembered, and the next settled call reports its end.
 */

import type { Outcome } from '../core/decision.ts';
import type { KeyState, LimitCause } from '../policies/policy.ts';
import { LEARNT, type LimitChangedEvent } from './events.ts';

/** The adjustment as the event `limit-changed` reports it. */
export type Adjustment = Omit<LimitChangedEvent, 'type' | 'limit' | 'key' | 'cost' | 'at'>;

/** The most keys whose pace is tracked. For keys beyond it, the end of a pace is not reported. */
const MAX_PACED_KEYS = 1000;

const NO_PACE = Infinity;

export class Adjustments {
  readonly #pacedKeys = new Set<string>();

  /** The adjustment by a call with this outcome; undefined if there is none. */
  between(
    key: string,
    before: KeyState,
    after: KeyState,
    outcome: Outcome,
  ): Adjustment | undefined {
    const { limit: from = 0 } = before;
    const { limit: to = 0 } = after;
    const cause = causeOfLimit(before, after, outcome) ?? this.#causeOfPace(key, before, after);
    this.#trackPace(key, after);
    if (cause === undefined) return undefined;
    const learnt = LEARNT.filter((name) => after[name] !== undefined);
    return { from, to, cause, ...Object.fromEntries(learnt.map((name) => [name, after[name]])) };
  }

  /** Refusals set or cut a pace; successes raise or lift it. */
  #causeOfPace(key: string, before: KeyState, after: KeyState): LimitCause | undefined {
    const { pacePerSecond: from = NO_PACE } = before;
    const { pacePerSecond: to = NO_PACE } = after;
    if (to < from) return 'refusal';
    const isLifted = to === NO_PACE && this.#pacedKeys.has(key);
    return to > from || isLifted ? 'success' : undefined;
  }

  #trackPace(key: string, { pacePerSecond }: KeyState): void {
    if (pacePerSecond === undefined) this.#pacedKeys.delete(key);
    else if (this.#pacedKeys.size < MAX_PACED_KEYS) this.#pacedKeys.add(key);
  }
}

/**
 * Why the call changed the limit; undefined if it did not. The `delay` rule reports its cause itself. Other rules
 * decrease because of back-pressure, from this call or an earlier one, or because of latency.
 */
function causeOfLimit(before: KeyState, after: KeyState, outcome: Outcome): LimitCause | undefined {
  const { limit: from = 0, backPressure } = before;
  const { limit: to = 0, cause } = after;
  const isPressure = outcome === 'busy' || outcome === 'timeout';
  if (from === to) return undefined;
  // An earlier cut is the cause: the limit has a fraction and only alternates between the two whole numbers around it.
  if (!isPressure && (cause === 'refusal' || cause === 'silence')) return undefined;
  if (cause !== undefined) return cause;
  if (to > from) return 'success';
  return isPressure || backPressure === true ? 'back-pressure' : 'latency';
}
