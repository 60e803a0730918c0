/** Members of limiters for this package's own callers (throttle, adapters, daemon, CLI). They may change at any time. */

import type { Clock, Millis } from '../core/clock.ts';
import type { Decision, Outcome } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import type { Random } from '../core/random.ts';
import type { RemoteLimiter } from './async-limiter.ts';
import type { CheckOptions, Limiter } from './limiter-interface.ts';
import type { Permit } from './permit.ts';
import type { EventLoopMonitor } from './telemetry.ts';

/** Members of every limiter. */
interface CommonInternals {
  readonly clock: Clock;
  readonly random: Random;
  /** True if every rule protects the capacity of a service, and none a client's quota. */
  readonly isCapacity: boolean;
  /** True if a lock-out counts attempts, whose end is reported. */
  readonly takesReports: boolean;
  /** Adds the delay of the event loop to the statistics. */
  observeEventLoop(monitor: EventLoopMonitor): void;
  /** Counts and reports a decision that the caller made. */
  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void;
  /** Counts and reports a retry that the retry budget refused. */
  recordDeniedRetry(key: string, cost: number, outcome: Outcome): void;
}

/** Members of a limiter that decides in this process. */
export interface LimiterInternals extends Limiter, CommonInternals {
  readonly isRemote: false;
  /** True if `check` never decides `wait` and a call as checked needs no settling. */
  readonly isCheckOnly: boolean;
  /** A permit not used this long after it was due is lost; Infinity: never. */
  readonly expireMs: Millis;
  /** True if the call passed at once and ahead of no waiter. False is not counted: `acquire` comes next. */
  tryPass(key: string, cost?: number): boolean;
  /** `tryPass` that returns a permit, so that the call starts in the same tick. */
  tryPassWithPermit(key: string, cost?: number, options?: CheckOptions): Permit | undefined;
  /** True if a call that checks now would pass a waiter of this key. */
  hasWaiters(key: string, options?: CheckOptions): boolean;
  /** The name of the limit that refuses a call now: a component's name in a composite. */
  refusingLimit(key: string, cost: number): string;
  /** Why a cost never fits, for an error message. */
  explainNever(cost: number, key: string): string;
}

/** Members of a limiter whose backend decides elsewhere. */
export interface RemoteLimiterInternals extends RemoteLimiter, CommonInternals {
  readonly isRemote: true;
}

export type AnyLimiterInternals = LimiterInternals | RemoteLimiterInternals;

/** @throws {ConfigError} for an object that is not a limiter of this package. */
export function internalsOf(limiter: Limiter): LimiterInternals;
export function internalsOf(limiter: unknown): AnyLimiterInternals;
export function internalsOf(limiter: unknown): AnyLimiterInternals {
  const own = limiter as Partial<AnyLimiterInternals> | null | undefined;
  if (own?.isRemote === true || typeof (own as LimiterInternals)?.isCheckOnly === 'boolean')
    return limiter as AnyLimiterInternals;
  throw new ConfigError('limiter', 'a limiter made by limiter() or all()', limiter);
}
