/**
 * Doing the work that a permit was given for, and saying how it went.
 *
 * Whatever the work does (answers, promises, throws) and whatever those say who judge it, the permit is
 * settled once and never lost, and the caller hears of its own error and of no other.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import type { Permit, Settled } from '../limiter/permit.ts';
import type { Tried } from './retry.ts';

/** How somebody says how a call went. */
export interface Settling {
  readonly used: ((result: unknown) => number) | undefined;
  readonly outcome: ((error: unknown, result: unknown) => Outcome) | undefined;
  readonly retryAfter: ((error: unknown, result: unknown) => Millis | undefined) | undefined;
}

/** Does the work and says how it went, whether it answers at once or with a promise. */
export function settled(permit: Permit, settling: Settling, work: () => unknown): unknown {
  let result: unknown;
  try {
    result = work();
  } catch (error) {
    failed(permit, settling, error);
    throw error;
  }
  if (!isPromise(result)) return done(permit, settling, result);
  return result.then(
    (value) => done(permit, settling, value),
    (error) => {
      failed(permit, settling, error);
      throw error;
    },
  );
}

/** Does the work and keeps what became of it: whether it is the last word is not known yet. */
export async function tried(
  permit: Permit,
  settling: Settling,
  work: () => unknown,
): Promise<Tried> {
  let said: Settled = {};
  const hear = (own: Settled): void => {
    said = own;
  };
  const told = () => ({ outcome: said.outcome ?? 'ok', retryAfterMs: said.retryAfterMs });
  let result: unknown;
  try {
    result = await work();
  } catch (error) {
    failed(permit, settling, error, hear);
    return { ...told(), error };
  }
  done(permit, settling, result, hear);
  return { ...told(), result };
}

type Hear = (said: Settled) => void;

function done(permit: Permit, settling: Settling, result: unknown, hear?: Hear): unknown {
  const { used, outcome, retryAfter } = settling;
  settleWith(permit, {}, hear, () => ({
    ...(used && { used: used(result) }),
    ...(outcome && { outcome: outcome(undefined, result) }),
    ...wantedLater(retryAfter?.(undefined, result)),
  }));
  return result;
}

/** The caller hears of its own error, whatever its `outcome` makes of it. */
function failed(permit: Permit, settling: Settling, error: unknown, hear?: Hear): void {
  const { outcome, retryAfter } = settling;
  const usual = { outcome: outcomeOf(error) };
  try {
    settleWith(permit, usual, hear, () => ({
      ...(outcome ? { outcome: outcome(error, undefined) } : usual),
      ...wantedLater(retryAfter?.(error, undefined)),
    }));
  } catch {
    // settled as usual; the error that matters is on its way
  }
}

const wantedLater = (retryAfterMs: Millis | undefined): Settled =>
  retryAfterMs === undefined ? {} : { retryAfterMs };

/** Settles with what `judge` says, and as usual if it cannot say: a permit is never lost. */
function settleWith(
  permit: Permit,
  usual: Settled,
  hear: Hear | undefined,
  judge: () => Settled,
): void {
  hear?.(usual);
  try {
    const said = judge();
    permit.settle(said);
    hear?.(said);
  } catch (error) {
    permit.settle(usual); // counts only if the first did not
    throw error;
  }
}

const outcomeOf = (error: unknown): Outcome =>
  error instanceof Error && error.name === 'TimeoutError' ? 'timeout' : 'failed';

export const isPromise = (value: unknown): value is Promise<unknown> =>
  typeof value === 'object' &&
  value !== null &&
  'then' in value &&
  typeof value.then === 'function';
