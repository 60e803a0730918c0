/**
 * Any function, kept inside a limit.
 *
 *     const search = throttle(fetchResults, { limit: { spacing: { every: '6s' } }, wait: true });
 *     await search('sluice');       // same arguments, same result, one every six seconds
 *
 * This is the one place that turns a refusal into an exception: a function has no other way to say
 * that it did not run. `onDeny` chooses another way.
 */

import type { Millis } from '../core/clock.ts';
import type { Decision, Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError, type Denial, DeniedError } from '../core/errors.ts';
import { isRecord, parseWaitMs } from '../core/options.ts';
import { isRemote, type RemoteLimiter } from '../limiter/async-limiter.ts';
import { type LimiterOptions, limiter } from '../limiter/limiter.ts';
import type { Refusal } from '../limiter/permit.ts';
import type { AcquireOptions, Limiter } from '../limiter/sync-limiter.ts';
import { type Attempt, type RetryOptions, RetryPolicy, signalGetter } from './retry.ts';
import { isPromiseLike, runAndSettle, runAttempt, type SettleHooks } from './run-with-permit.ts';

/** Whatever can be called. */
export type Callable = (...args: never[]) => unknown;

type ResultOf<F extends Callable> = Awaited<ReturnType<F>>;

/** What `throttle` wants to know of each call. */
export interface CallOptions<F extends Callable> {
  /** Which key a call counts against. Default: one for all calls. */
  readonly key?: (...args: Parameters<F>) => string;
  /** What a call costs. Default 1. */
  readonly cost?: (...args: Parameters<F>) => number;
  /** What it really used, once that is known: the difference is given back, or charged. */
  readonly used?: (result: ResultOf<F>) => number;
  /** How it went. Default: ok; timeout for a TimeoutError; failed for any other error. */
  readonly outcome?: (error: unknown, result: ResultOf<F> | undefined) => Outcome;
  /** How long the other side wants nothing more, if it said so: nobody is let through until then. */
  readonly retryAfter?: (error: unknown, result: ResultOf<F> | undefined) => Millis | undefined;
  /** Try again when it went badly: true, so many times, or in detail. Default: once is enough. */
  readonly retry?: boolean | number | RetryOptions;
  /** Wait for a turn, for as long as it takes (true) or no longer than this. Default false. */
  readonly wait?: boolean | Duration;
  /** Stops waiting when it aborts: one for all calls, or one found in a call's arguments. */
  readonly signal?: AbortSignal | ((...args: Parameters<F>) => AbortSignal | undefined);
  /** With a queue in order of priority: higher goes first. Default 0. */
  readonly priority?: (...args: Parameters<F>) => number;
  /** Which part of a limit with partitions it counts against. */
  readonly partition?: (...args: Parameters<F>) => string | undefined;
  /** When refused: throw a DeniedError (default), skip (undefined), or return what this does. */
  readonly onDeny?: 'throw' | 'skip' | ((denial: Denial, ...args: Parameters<F>) => ResultOf<F>);
}

/** A limit of its own, or a limiter it shares with others. */
export type ThrottleOptions<F extends Callable> = CallOptions<F> &
  (
    | (LimiterOptions & { readonly limiter?: never })
    | { readonly limiter: Limiter | RemoteLimiter; readonly limit?: never }
  );

/** A function that may be skipped may give nothing. */
type Skippable<F extends Callable> = (
  ...args: Parameters<F>
) => ReturnType<F> extends Promise<infer R> ? Promise<R | undefined> : ReturnType<F> | undefined;

/** At once or not at all, and once: what a function that is not async can have. */
interface SyncOptions {
  readonly wait?: false;
  readonly retry?: false;
  readonly backend?: never;
  readonly limiter?: Limiter;
}

/**
 * Wraps a function. What comes back has the same type, and passes `this` on.
 *
 * A function that waits or tries again must return a promise; otherwise any function will do, and
 * one that is not async stays so.
 */
export function throttle<F extends Callable>(
  fn: F,
  options: ThrottleOptions<F> & SyncOptions & { readonly onDeny: 'skip' },
): Skippable<F>;
export function throttle<F extends Callable>(fn: F, options: ThrottleOptions<F> & SyncOptions): F;
export function throttle<F extends (...args: never[]) => Promise<unknown>>(
  fn: F,
  options: ThrottleOptions<F> & { readonly onDeny: 'skip' },
): Skippable<F>;
export function throttle<F extends (...args: never[]) => Promise<unknown>>(
  fn: F,
  options: ThrottleOptions<F>,
): F;
export function throttle<F extends Callable>(fn: F, options: ThrottleOptions<F>): unknown {
  if (typeof fn !== 'function') throw new ConfigError('fn', 'a function', fn);
  if (!isRecord(options)) throw new ConfigError('options', 'an object with a limit', options);
  const {
    key,
    cost,
    used,
    outcome,
    retryAfter,
    retry = false,
    partition,
    priority,
    ...more
  } = options;
  const { wait = false, signal, onDeny = 'throw', ...rest } = more;
  requireFunctions({ key, cost, used, outcome, retryAfter, partition, priority });
  const target = resolveLimiter(rest);
  const returnKind: ReturnKind = { isPromise: isAsyncFunction(fn), isKnown: isAsyncFunction(fn) };
  const call = {
    limiter: target,
    keyOf: key ?? defaultKey,
    costOf: cost ?? defaultCost,
    signalOf: signalGetter(signal),
    partitionOf: partition,
    priorityOf: priority,
    maxWaitMs: parseWaitMs(wait),
    onRefused: createRefusalHandler(onDeny as OnDeny, returnKind),
    returnKind,
    settleHooks: { used, outcome, retryAfter },
  } as unknown as CallPlan;
  if (isRemote(target)) {
    return retry === false
      ? wrapRemoteAcquire(fn, call)
      : wrapRetry(fn, call, createRetryPolicy(retry, target));
  }
  // Nothing to hold and nothing to settle: a check, then the call.
  const isPlain = target.isCheckOnly && !used && !outcome && !retryAfter && !partition;

  if (retry !== false) {
    return wrapRetry(fn, call, createRetryPolicy(retry, target));
  }
  if (wait !== false) return wrapAcquire(fn, call, isPlain);
  if (!isPlain) return wrapTryAcquire(fn, call);
  return key || cost ? wrapCheck(fn, call) : wrapCheckDefaultKey(fn, call);
}

type AsyncCallable = (...args: never[]) => Promise<unknown>;

/** What a decorator does with a method: gives back one of the same type. */
type ThrottleDecorator<M extends Callable> = <F extends M>(
  method: F,
  context: ClassMethodDecoratorContext,
) => F;

/**
 * The same for a method: `@throttled({ limit: { bucket: { rate: '10/s' } } })`.
 *
 * A decorator cannot change a method's type: one that may be skipped should say so itself, with
 * `| undefined` in what it gives.
 */
export function throttled(
  options: ThrottleOptions<Callable> & SyncOptions,
): ThrottleDecorator<Callable>;
export function throttled(options: ThrottleOptions<Callable>): ThrottleDecorator<AsyncCallable>;
export function throttled(options: ThrottleOptions<Callable>): ThrottleDecorator<never> {
  return (method) => throttle(method as never, options as never) as never;
}

/** How a wrapped function asks, refuses and settles. */
interface CallPlan {
  readonly limiter: Limiter;
  readonly keyOf: (...args: never[]) => string;
  readonly costOf: (...args: never[]) => number;
  readonly signalOf: ((...args: never[]) => AbortSignal | undefined) | undefined;
  readonly partitionOf: ((...args: never[]) => string | undefined) | undefined;
  readonly priorityOf: ((...args: never[]) => number) | undefined;
  readonly maxWaitMs: Millis;
  readonly onRefused: RefusalHandler;
  readonly settleHooks: SettleHooks;
  readonly returnKind: ReturnKind;
}

/** What a function gives is known once it has given something: a refusal must look the same. */
interface ReturnKind {
  isPromise: boolean;
  isKnown: boolean;
}

function recordReturnKind<T>(returnKind: ReturnKind, result: T): T {
  returnKind.isPromise = isPromiseLike(result);
  returnKind.isKnown = true;
  return result;
}

// Five ways to call, from the cheapest to the one that does everything. Arguments are handed on by
// spreading: where they go nowhere else, no list of them is ever made.

function wrapCheckDefaultKey(fn: Callable, { limiter, onRefused, returnKind }: CallPlan): Callable {
  return function throttled(this: never, ...args: never[]) {
    const decision = limiter.check('');
    if (decision.verdict !== 'allow') return onRefused('', decision, limiter.name, ...args);
    return returnKind.isKnown
      ? fn.call(this, ...args)
      : recordReturnKind(returnKind, fn.call(this, ...args));
  };
}

function wrapCheck(
  fn: Callable,
  { limiter, keyOf, costOf, onRefused, returnKind }: CallPlan,
): Callable {
  return function throttled(this: never, ...args: never[]) {
    const key = keyOf(...args);
    const decision = limiter.check(key, costOf(...args));
    if (decision.verdict !== 'allow') return onRefused(key, decision, limiter.name, ...args);
    return returnKind.isKnown
      ? fn.call(this, ...args)
      : recordReturnKind(returnKind, fn.call(this, ...args));
  };
}

function wrapTryAcquire(fn: Callable, call: CallPlan): Callable {
  return function throttled(this: never, ...args: never[]) {
    const { limiter, keyOf, costOf, onRefused, settleHooks, returnKind } = call;
    const key = keyOf(...args);
    const entry = limiter.tryAcquire(key, costOf(...args), checkOptionsOf(call, args));
    return entry.verdict === 'deny'
      ? onRefused(key, entry, entry.limit, ...args)
      : recordReturnKind(
          returnKind,
          runAndSettle(entry, settleHooks, () => fn.apply(this, args)),
        );
  };
}

function wrapAcquire(fn: Callable, call: CallPlan, isPlain: boolean): Callable {
  const { limiter, keyOf, costOf, onRefused, settleHooks } = call;
  const inLine = async (that: never, key: string, cost: number, args: never[]) => {
    const entry = await limiter.acquire(key, cost, acquireOptionsOf(call, args));
    return entry.verdict === 'deny'
      ? onRefused(key, entry, entry.limit, ...args)
      : runAndSettle(entry, settleHooks, () => fn.apply(that, args));
  };

  return function throttled(this: never, ...args: never[]) {
    try {
      const key = keyOf(...args);
      const cost = costOf(...args);
      if (call.signalOf && isAborted(call, args)) return inLine(this, key, cost, args);
      // Whoever may go at once goes at once: a limit on real time is kept when the call is made, not
      // when it was granted. And the function makes a promise already; another costs more than the limit.
      if (isPlain) {
        if (limiter.tryPass(key, cost)) return toPromise(fn.call(this, ...args));
      } else {
        const permit = limiter.tryPassWithPermit(key, cost, checkOptionsOf(call, args));
        if (permit) return toPromise(runAndSettle(permit, settleHooks, () => fn.apply(this, args)));
      }
      return inLine(this, key, cost, args);
    } catch (error) {
      return Promise.reject(error);
    }
  };
}

const isAborted = ({ signalOf }: CallPlan, args: never[]): boolean =>
  signalOf?.(...args)?.aborted === true;

const toPromise = (value: unknown): unknown =>
  value instanceof Promise ? value : Promise.resolve(value);

/** Somebody else decides, so every call waits for the answer at least. */
function wrapRemoteAcquire(fn: Callable, call: CallPlan): Callable {
  const { limiter, keyOf, costOf, onRefused, settleHooks } = call;
  return async function throttled(this: never, ...args: never[]) {
    const key = keyOf(...args);
    const entry = await limiter.acquire(key, costOf(...args), acquireOptionsOf(call, args));
    return entry.verdict === 'deny'
      ? onRefused(key, entry, entry.limit, ...args)
      : runAndSettle(entry, settleHooks, () => fn.apply(this, args));
  };
}

/** Each try is a call of its own: it asks, is timed and settles before the next is thought of. */
function wrapRetry(fn: Callable, call: CallPlan, retryPolicy: RetryPolicy): Callable {
  const { limiter, keyOf, costOf, onRefused, settleHooks } = call;
  return async function throttled(this: never, ...args: never[]) {
    const [key, cost, limits] = [keyOf(...args), costOf(...args), acquireOptionsOf(call, args)];
    let last: Attempt | undefined;
    for (let n = 1; ; n++) {
      limits.signal?.throwIfAborted();
      const entry =
        (isRemote(limiter)
          ? undefined
          : limiter.tryPassWithPermit(key, cost, checkOptionsOf(call, args))) ??
        (await limiter.acquire(key, cost, limits));
      if (entry.verdict === 'deny') {
        // What the first try brought is worth more to the caller than that there was no second.
        return last ? unwrapAttempt(last) : onRefused(key, entry, entry.limit, ...args);
      }
      if (last) retryPolicy.notifyRetry(last, n);
      last = await runAttempt(entry, settleHooks, () => fn.apply(this, args));
      const delayMs = retryPolicy.delayMs(n, last);
      if (delayMs === undefined) return unwrapAttempt(last);
      await retryPolicy.sleep(delayMs, limits.signal);
    }
  };
}

function unwrapAttempt(attempt: Attempt): unknown {
  if ('error' in attempt) throw attempt.error;
  return attempt.result;
}

function checkOptionsOf(
  { partitionOf }: CallPlan,
  args: never[],
): { partition?: string } | undefined {
  const partition = partitionOf?.(...args);
  return partition === undefined ? undefined : { partition };
}

function acquireOptionsOf(call: CallPlan, args: never[]): AcquireOptions {
  const { signalOf, priorityOf, maxWaitMs } = call;
  const signal = signalOf?.(...args);
  const priority = priorityOf?.(...args) ?? 0;
  return { wait: maxWaitMs, priority, ...(signal && { signal }), ...checkOptionsOf(call, args) };
}

const defaultKey = (): string => '';
const defaultCost = (): number => 1;

function requireFunctions(functions: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(functions)) {
    if (value === undefined || typeof value === 'function') continue;
    throw new ConfigError(name, 'a function of the arguments', value);
  }
}

const createRetryPolicy = (
  retry: true | number | RetryOptions,
  { clock, random }: Limiter | RemoteLimiter,
): RetryPolicy => new RetryPolicy(retry, clock, random);

function resolveLimiter(options: {
  readonly limiter?: Limiter | RemoteLimiter;
  readonly limit?: unknown;
}): Limiter | RemoteLimiter {
  const { limiter: given, ...others } = options;
  if (!('limiter' in options)) return limiter(others as LimiterOptions);
  const [stray] = Object.keys(others);
  if (stray !== undefined) throw new ConfigError(stray, 'left out when a limiter is given', stray);
  if (typeof given?.acquire === 'function') return given;
  throw new ConfigError('limiter', 'a limiter', given);
}

/** Known for functions written with `async`; others that return promises cannot be told apart. */
const isAsyncFunction = (fn: Callable): boolean =>
  Object.prototype.toString.call(fn) === '[object AsyncFunction]';

type OnDeny = 'throw' | 'skip' | ((denial: Denial, ...args: unknown[]) => unknown);

/** Answers for a call that was refused. */
type RefusalHandler = (
  key: string,
  refused: Decision | Refusal,
  limit: string,
  ...args: never[]
) => unknown;

function createRefusalHandler(onDeny: OnDeny, returnKind: ReturnKind): RefusalHandler {
  if (onDeny !== 'throw' && onDeny !== 'skip' && typeof onDeny !== 'function') {
    throw new ConfigError('onDeny', 'throw, skip or a function', onDeny);
  }
  const refuse: RefusalHandler = (key, refused, limit, ...args) => {
    if (onDeny === 'skip') return undefined;
    const { retryAfterMs, reason } = refused as Refusal;
    const denial: Denial = { verdict: 'deny', retryAfterMs, limit, ...(reason && { reason }) };
    if (onDeny === 'throw') throw new DeniedError(key, denial);
    return onDeny(denial, ...args);
  };
  const asPromise = async (...what: Parameters<RefusalHandler>): Promise<unknown> =>
    refuse(...what);
  // What gives promises never throws at once, and always gives one.
  return (...what) => (returnKind.isPromise ? asPromise(...what) : refuse(...what));
}
