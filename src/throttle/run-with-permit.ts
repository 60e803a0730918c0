/**
 * Doing the work that a permit was given for, and saying how it went.
 *
 * Whatever the work does (answers, promises, throws) and whatever those say who judge it, the permit is
 * settled once and never lost, and the caller hears of its own error and of no other.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import type { Permit, PermitResult } from '../limiter/permit.ts';
import type { Attempt } from './retry.ts';

/** How somebody says how a call went. */
export interface SettleHooks {
  readonly used: ((result: unknown) => number) | undefined;
  readonly outcome: ((error: unknown, result: unknown) => Outcome) | undefined;
  readonly retryAfter: ((error: unknown, result: unknown) => Millis | undefined) | undefined;
}

/** Does the work and says how it went, whether it answers at once or with a promise. */
export function runAndSettle(permit: Permit, hooks: SettleHooks, work: () => unknown): unknown {
  let result: unknown;
  try {
    result = work();
  } catch (error) {
    settleThrown(permit, hooks, error);
    throw error;
  }
  if (!isPromiseLike(result)) return settleReturned(permit, hooks, result);
  return result.then(
    (value) => settleReturned(permit, hooks, value),
    (error) => {
      settleThrown(permit, hooks, error);
      throw error;
    },
  );
}

/** Does the work and keeps what became of it: whether it is the last word is not known yet. */
export async function runAttempt(
  permit: Permit,
  hooks: SettleHooks,
  work: () => unknown,
): Promise<Attempt> {
  let said: PermitResult = {};
  const onResult = (own: PermitResult): void => {
    said = own;
  };
  const told = () => ({ outcome: said.outcome ?? 'ok', retryAfterMs: said.retryAfterMs });
  let result: unknown;
  try {
    result = await work();
  } catch (error) {
    settleThrown(permit, hooks, error, onResult);
    return { ...told(), error };
  }
  settleReturned(permit, hooks, result, onResult);
  return { ...told(), result };
}

type OnResult = (said: PermitResult) => void;

function settleReturned(
  permit: Permit,
  hooks: SettleHooks,
  result: unknown,
  onResult?: OnResult,
): unknown {
  const { used, outcome, retryAfter } = hooks;
  settleOrDefault(permit, {}, onResult, () => ({
    ...(used && { used: used(result) }),
    ...(outcome && { outcome: outcome(undefined, result) }),
    ...retryAfterField(retryAfter?.(undefined, result)),
  }));
  return result;
}

/** The caller hears of its own error, whatever its `outcome` makes of it. */
function settleThrown(
  permit: Permit,
  hooks: SettleHooks,
  error: unknown,
  onResult?: OnResult,
): void {
  const { outcome, retryAfter } = hooks;
  const usual = { outcome: outcomeOfError(error) };
  try {
    settleOrDefault(permit, usual, onResult, () => ({
      ...(outcome ? { outcome: outcome(error, undefined) } : usual),
      ...retryAfterField(retryAfter?.(error, undefined)),
    }));
  } catch {
    // settled as usual; the error that matters is on its way
  }
}

const retryAfterField = (retryAfterMs: Millis | undefined): PermitResult =>
  retryAfterMs === undefined ? {} : { retryAfterMs };

/** Settles with what `judge` says, and as usual if it cannot say: a permit is never lost. */
function settleOrDefault(
  permit: Permit,
  usual: PermitResult,
  onResult: OnResult | undefined,
  judge: () => PermitResult,
): void {
  onResult?.(usual);
  try {
    const said = judge();
    permit.settle(said);
    onResult?.(said);
  } catch (error) {
    permit.settle(usual); // counts only if the first did not
    throw error;
  }
}

const outcomeOfError = (error: unknown): Outcome =>
  error instanceof Error && error.name === 'TimeoutError' ? 'timeout' : 'failed';

export const isPromiseLike = (value: unknown): value is Promise<unknown> =>
  typeof value === 'object' &&
  value !== null &&
  'then' in value &&
  typeof value.then === 'function';
