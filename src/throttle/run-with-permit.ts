/**
 * Runs a call with a permit and settles the permit with the call's result.
 *
 * Whether the call returns, returns a promise or throws, and whatever the hooks do, the permit is settled exactly once.
 * An error of the call takes precedence over an error of a hook.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import type { Permit, PermitResult } from '../limiter/permit.ts';
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
  if (!isPromiseLike(result)) return settleReturned(permit, hooks, result);
  return result.then(
    (value) => settleReturned(permit, hooks, value),
    (error) => {
      settleThrown(permit, hooks, error);
      throw error;
    },
  );
}

/** Runs and settles one attempt of several, and returns its result or error as a value. */
export async function runAttempt(
  permit: Permit,
  hooks: SettleHooks,
  work: () => unknown,
): Promise<Attempt> {
  let settled: PermitResult = {};
  const onResult = (settlement: PermitResult): void => {
    settled = settlement;
  };
  const summary = () => ({ outcome: settled.outcome ?? 'ok', retryAfterMs: settled.retryAfterMs });
  let result: unknown;
  try {
    result = await work();
  } catch (error) {
    settleThrown(permit, hooks, error, onResult);
    return { ...summary(), error };
  }
  settleReturned(permit, hooks, result, onResult);
  return { ...summary(), result };
}

type OnResult = (settlement: PermitResult) => void;

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

/** An error of a hook is dropped: the caller gets the error of the call. */
function settleThrown(
  permit: Permit,
  hooks: SettleHooks,
  error: unknown,
  onResult?: OnResult,
): void {
  const { outcome, retryAfter } = hooks;
  const fallback = { outcome: outcomeOfError(error) };
  try {
    settleOrDefault(permit, fallback, onResult, () => ({
      ...(outcome ? { outcome: outcome(error, undefined) } : fallback),
      ...retryAfterField(retryAfter?.(error, undefined)),
    }));
  } catch {
    // settled with the default; the caller throws the call's own error
  }
}

const retryAfterField = (retryAfterMs: Millis | undefined): PermitResult =>
  retryAfterMs === undefined ? {} : { retryAfterMs };

/** Settles with the result of the hooks, or with the default if a hook throws. */
function settleOrDefault(
  permit: Permit,
  fallback: PermitResult,
  onResult: OnResult | undefined,
  runHooks: () => PermitResult,
): void {
  onResult?.(fallback);
  try {
    const settlement = runHooks();
    permit.settle(settlement);
    onResult?.(settlement);
  } catch (error) {
    permit.settle(fallback); // no effect if the first settle succeeded
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
