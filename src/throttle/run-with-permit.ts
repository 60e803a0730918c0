/**
 * Whether the call returns, returns a promise or throws, and whatever the hooks do, the permit is settled exactly once.
 * An error of the call takes precedence over an error of a hook.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import { HOLD, type Permit, type PermitResult } from '../limiter/permit.ts';
import { outcomeOfError } from './error-outcome.ts';
import type { Attempt } from './retry.ts';

/** The options of `throttle` that read a call's result. */
export interface SettleHooks {
  readonly used: ((result: unknown) => number) | undefined;
  readonly outcome: ((error: unknown, result: unknown) => Outcome) | undefined;
  readonly retryAfter: ((error: unknown, result: unknown) => Millis | undefined) | undefined;
}

/** Runs and settles a call, sync or async. */
export function runAndSettle(permit: Permit, hooks: SettleHooks, work: () => unknown): unknown {
  let result: unknown;
  try {
    result = work();
  } catch (error) {
    settleThrown(permit, hooks, error);
    throw error;
  }
  if (!isPromiseLike(result)) {
    settleReturned(permit, hooks, result);
    return result;
  }
  const onReturned = (value: unknown): unknown => {
    settleReturned(permit, hooks, value);
    return value;
  };
  permit[HOLD](onReturned); // not the promise: a thenable may be gone while its work goes on
  return result.then(onReturned, (error) => {
    settleThrown(permit, hooks, error);
    throw error;
  });
}

/** Runs and settles one attempt of several, and returns its result or error as a value. */
export async function runAttempt(
  permit: Permit,
  hooks: SettleHooks,
  args: readonly unknown[],
  work: () => unknown,
): Promise<Attempt> {
  let result: unknown;
  try {
    result = await work();
  } catch (error) {
    const { outcome = 'ok', retryAfterMs } = settleThrown(permit, hooks, error);
    return { outcome, retryAfterMs, error, args };
  }
  const { outcome = 'ok', retryAfterMs } = settleReturned(permit, hooks, result);
  return { outcome, retryAfterMs, result, args };
}

function settleReturned(permit: Permit, hooks: SettleHooks, result: unknown): PermitResult {
  const { used, outcome, retryAfter } = hooks;
  return settleOrDefault(permit, {}, () => ({
    ...(used && { used: used(result) }),
    ...(outcome && { outcome: outcome(undefined, result) }),
    ...retryAfterField(retryAfter?.(undefined, result)),
  }));
}

/** An error of a hook is dropped: the caller gets the error of the call. */
function settleThrown(permit: Permit, hooks: SettleHooks, error: unknown): PermitResult {
  const { outcome, retryAfter } = hooks;
  const fallback = { outcome: outcomeOfError(error) };
  try {
    return settleOrDefault(permit, fallback, () => ({
      ...(outcome ? { outcome: outcome(error, undefined) } : fallback),
      ...retryAfterField(retryAfter?.(error, undefined)),
    }));
  } catch {
    return fallback;
  }
}

const retryAfterField = (retryAfterMs: Millis | undefined): PermitResult =>
  retryAfterMs === undefined ? {} : { retryAfterMs };

/** Settles with the result of the hooks, or with the default if a hook throws. */
function settleOrDefault(
  permit: Permit,
  fallback: PermitResult,
  runHooks: () => PermitResult,
): PermitResult {
  try {
    const settlement = runHooks();
    permit.settle(settlement);
    return settlement;
  } catch (error) {
    permit.settle(fallback); // no effect if the first settle succeeded
    throw error;
  }
}

export const isPromiseLike = (value: unknown): value is Promise<unknown> =>
  typeof value === 'object' &&
  value !== null &&
  'then' in value &&
  typeof value.then === 'function';
