/**
 * A permit: held from allow to settle. A refusal: what `acquire` returns instead.
 *
 *     const entry = await api.acquire('sink');
 *     if (entry.verdict === 'deny') return later(entry.retryAfterMs);
 *     try { await send(); entry.settle(); } catch (error) { entry.settle({ outcome: 'failed' }); }
 *
 * With `using entry = await api.acquire('sink')` a permit is settled as ok when the block ends, unless it was settled
 * before. A refusal is disposable too, so both fit the same declaration.
 *
 * A permit can end before its call: after `permitTimeout` if the call is not known to run, or with its lease where a
 * server counts calls in flight. Its slot may then be used by another call. `signal` tells the call, and with
 * `fencingToken` a resource can reject the older of two calls.
 */

// Declares `Disposable` for projects that compile without this library of TypeScript.

import type { Millis } from '../core/clock.ts';
import { type Decision, deny } from '../core/decision.ts';
import { UnavailableError } from '../core/errors.ts';
import { type CallResult, requireResult } from './validate.ts';

declare global {
  // As in TypeScript's own library from 5.2 on, for projects without it: both declarations are merged.
  interface SymbolConstructor {
    readonly dispose: unique symbol;
  }
  interface Disposable {
    [Symbol.dispose](): void;
  }
}

/** Why a call got no permit. */
export type RefusalReason =
  | 'not-now' // it does not fit now, and the call does not wait
  | 'locked' // a lock-out has locked its key
  | 'never' // its cost can never fit
  | 'too-long' // it would wait, or has waited, longer than `wait` allows
  | 'queue-full'
  | 'unavailable' // the backend is unavailable, and `onUnavailable` is deny
  | 'closed'; // the limiter is closed

/** The result of a call that had a permit. Key, cost and due time are known from the permit. */
export type PermitResult = Omit<CallResult, 'cost' | 'dueAt' | 'partition' | 'level'>;

export interface PermitInit extends Pick<Permit, 'key' | 'cost' | 'dueAt' | 'issuedAt'> {
  readonly fencingToken?: number | undefined;
  readonly remaining?: number | undefined;
  /** The permits of the limits it consists of, where a composite issued it. */
  readonly children?: readonly Permit[];
}

/** Ends a permit that is not settled and aborts its signal. Its holder still settles it. */
export let endPermit: (permit: Permit, why: string) => void;

/** Returns the object that keeps the permit from expiring, once; later calls return undefined. */
export let takeHolder: (permit: Permit) => WeakRef<object> | undefined;

/** A registered symbol: a process may load two copies of this package, one for the permit and one for its call. */
export const HOLD: unique symbol = Symbol.for('sluice.hold') as never;

/** Permission for one call, held until the call is over and settled. */
export class Permit implements Disposable {
  readonly verdict = 'allow';
  readonly key: string;
  readonly cost: number;
  /** When it was due, on the clock that decided. */
  readonly dueAt: Millis;
  /** When it was issued, on the limiter's clock. */
  readonly issuedAt: Millis;
  // Declared, not defined: most permits have neither.
  /** Where Redis counts calls in flight: grows with every grant of the key, so a resource can refuse a lower one. */
  declare readonly fencingToken?: number;
  /** The key's remaining capacity when the permit was issued, if a remote backend has reported it. */
  declare readonly remaining?: number;
  readonly #children: readonly Permit[] | undefined;
  #onSettle: ((result: PermitResult) => void) | undefined;
  #isReturned = false;
  /** A composite's permit has a signal without a controller: only the permits of its components end. */
  #abort: (Pick<AbortController, 'signal'> & Partial<AbortController>) | undefined;
  /** Why it has ended before it was settled. */
  #endedBecause: string | undefined;
  #holder: object | undefined;

  static {
    endPermit = (permit, why) => {
      if (permit.isSettled) return;
      permit.#endedBecause = why;
      permit.#abort?.abort?.(permit.#endError(why));
    };
    takeHolder = (permit) => {
      const holder = permit.#holder;
      permit.#holder = undefined;
      return holder && new WeakRef(holder);
    };
  }

  constructor(
    { key, cost, dueAt, issuedAt, children, fencingToken, remaining }: PermitInit,
    settle: (result: PermitResult) => void,
  ) {
    this.key = key;
    this.cost = cost;
    this.dueAt = dueAt;
    this.issuedAt = issuedAt;
    this.#children = children;
    this.#onSettle = settle;
    if (fencingToken !== undefined) this.fencingToken = fencingToken;
    if (remaining !== undefined) this.remaining = remaining;
  }

  /** Aborts when the permit ends before it is settled: its slot may be used again. Created on first access. */
  get signal(): AbortSignal {
    if (this.#children)
      this.#abort ??= { signal: AbortSignal.any(this.#children.map((child) => child.signal)) };
    if (!this.#abort) {
      const own = new AbortController();
      this.#abort = own;
      if (this.#endedBecause !== undefined) own.abort(this.#endError(this.#endedBecause));
    }
    return this.#abort.signal;
  }

  /** Created only for a signal that is read: an error and an abort cost more than the rest of an expiry. */
  #endError(why: string): UnavailableError {
    const what = `the permit for key ${JSON.stringify(this.key)}`;
    return new UnavailableError(what, why, 'has ended');
  }

  /** @internal Keeps the permit from expiring while `holder` is reachable. The end of the call must need `holder`. */
  [HOLD](holder: object): void {
    this.#holder = holder;
    if (this.#children) for (const child of this.#children) child[HOLD](holder);
  }

  /** True also for a permit that expired after `permitTimeout`. */
  get isSettled(): boolean {
    if (this.#onSettle === undefined) return true;
    return this.#children?.every((child) => child.isSettled) ?? false;
  }

  /** True if it was settled as `ignored`: its cost was returned. */
  get isReturned(): boolean {
    return this.#isReturned;
  }

  /** Reports how the call went, `ok` by default. A second settle has no effect. */
  settle(result: PermitResult = {}): void {
    requireResult(result); // an invalid result leaves it unsettled, so it can be settled again
    const settle = this.#onSettle;
    this.#onSettle = undefined; // before listeners run, which might settle it again
    this.#isReturned = result.outcome === 'ignored';
    try {
      settle?.(result);
    } catch (error) {
      this.#onSettle = settle;
      throw error;
    }
  }

  [Symbol.dispose](): void {
    this.settle();
  }
}

/** No permit: what `tryAcquire` and `acquire` return instead. It holds nothing. */
export class Refusal implements Disposable {
  readonly verdict = 'deny';
  /** The name of the limit that refused. */
  readonly limit: string;
  readonly retryAfterMs: Millis;
  readonly reason: RefusalReason;
  // Declared, not defined: most refusals have neither, and a refusal is on the hot path.
  /** How long the call has waited; left out if it has not. */
  declare readonly waitedMs?: Millis;
  /** Why, in words, where more is known than the reason says. */
  declare readonly detail?: string;
  /** The rule that refused, such as `bucket-2`, in a limit with several rules. */
  declare readonly rule?: string;

  constructor(
    limit: string,
    retryAfterMs: Millis,
    reason: RefusalReason,
    waitedMs: Millis,
    detail?: string,
    rule?: string,
  ) {
    this.limit = limit;
    this.retryAfterMs = retryAfterMs;
    this.reason = reason;
    if (waitedMs > 0) this.waitedMs = waitedMs;
    if (detail !== undefined) this.detail = detail;
    if (rule !== undefined) this.rule = rule;
  }

  [Symbol.dispose](): void {}
}

/** The decision that a refusal reports. */
export function decisionOfRefusal({ retryAfterMs, rule, reason }: Refusal): Decision {
  if (rule === undefined && reason !== 'locked') return deny(retryAfterMs);
  const named = rule === undefined ? {} : { rule };
  const why = reason === 'locked' ? { reason } : {};
  return { verdict: 'deny', retryAfterMs, ...named, ...why };
}
