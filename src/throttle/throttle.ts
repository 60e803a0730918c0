/**
 *     const search = throttle(fetchResults, { limit: { spacing: { every: '6s' } }, wait: true });
 *     await search('sluice');       // same arguments, same result, one call every 6 s
 *
 * A refusal becomes an exception: a function has no other way to report that it did not run, but for `onDeny`.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, NEVER, type Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError, type Denial, DeniedError } from '../core/errors.ts';
import { FLOW_FIELDS, type FlowOptions } from '../core/flow.ts';
import { isFunction, OptionReader, parseWaitMs } from '../core/options.ts';
import type { RemoteLimiter } from '../limiter/async-limiter.ts';
import type { AnyLimiterInternals, LimiterInternals } from '../limiter/internals.ts';
import type {
  AnyBackend,
  LimiterOf,
  LimiterOptions,
  OptionsWith,
  RemoteLimiterOptions,
} from '../limiter/limiter.ts';
import type { AcquireOptions, CheckOptions, Limiter } from '../limiter/limiter-interface.ts';
import { HOLD, type Refusal } from '../limiter/permit.ts';
import { resolveLimiter } from '../limiter/resolve-limiter.ts';
import { callClassOf } from '../limiter/validate.ts';
import { retryAfterOfError } from './error-outcome.ts';
import {
  type Attempt,
  createRetryPolicy,
  type RetryOptions,
  type RetryPolicy,
  signalGetter,
} from './retry.ts';
import { isPromiseLike, runAndSettle, runAttempt, type SettleHooks } from './run-with-permit.ts';

/** Any function. */
export type Callable = (...args: never[]) => unknown;
type AsyncCallable = (...args: never[]) => Promise<unknown>;

type ResultOf<F extends Callable> = Awaited<ReturnType<F>>;

/** How `throttle` reads each call. */
export interface CallOptions<F extends Callable> {
  /** The key a call counts against. Default: one for all calls. */
  readonly key?: ((...args: Parameters<F>) => string) | undefined;
  /** The cost of a call. Default 1. */
  readonly cost?: ((...args: Parameters<F>) => number) | undefined;
  /** The real cost of a call, from its result: the difference is given back, or charged. */
  readonly used?: ((result: ResultOf<F>) => number) | undefined;
  /** The outcome of a call. Default: ok; for an error by its status, code or name: busy, timeout or failed. */
  readonly outcome?: ((error: unknown, result: ResultOf<F> | undefined) => Outcome) | undefined;
  /** The Retry-After of the server's reply, in ms: no call of this key passes until then. Default: that of an error with a back-pressure status. */
  readonly retryAfter?: (error: unknown, result: ResultOf<F> | undefined) => Millis | undefined;
  /** Retry failed calls: true, a number of retries, or options. Default: no retry. */
  readonly retry?: boolean | number | RetryOptions | undefined;
  /** Wait for a permit, as long as it takes (true) or at most this long. Default false. */
  readonly wait?: boolean | Duration | undefined;
  /** Ends the wait when it aborts: one signal for all calls, or one from a call's arguments. */
  readonly signal?: AbortSignal | ((...args: Parameters<F>) => AbortSignal | undefined) | undefined;
  /** In a queue ordered by priority, higher goes first. Default 0. */
  readonly priority?: ((...args: Parameters<F>) => number) | undefined;
  /** In a queue of order `fair`: the flow of a call, such as its user. */
  readonly flow?: (...args: Parameters<F>) => string | undefined;
  /** The weight of the flow. Default 1. */
  readonly flowWeight?: (...args: Parameters<F>) => number | undefined;
  /** The tenant whose fair share the flow divides with others. */
  readonly tenant?: (...args: Parameters<F>) => string | undefined;
  /** The weight of the tenant. Default 1. */
  readonly tenantWeight?: (...args: Parameters<F>) => number | undefined;
  /** The partition a call counts against. */
  readonly partition?: (...args: Parameters<F>) => string | undefined;
  /** The level of a call, of a limit with `priorities`. Default: the lowest. */
  readonly level?: (...args: Parameters<F>) => string | undefined;
  /** For a refused call: throw a DeniedError (default), return undefined (skip), or return this function's result. */
  readonly onDeny?:
    | 'throw'
    | 'skip'
    | ((denial: Denial, ...args: Parameters<F>) => ResultOf<F>)
    | undefined;
}

type HowDenied = 'throw' | 'skip';

/** `onDeny` of one of these. */
type OnDeny<F extends Callable, How extends HowDenied> =
  | How
  | ((denial: Denial, ...args: Parameters<F>) => ResultOf<F>)
  | undefined;

/** Options of `throttle`: its own limit, or a shared limiter. */
export type ThrottleOptions<F extends Callable> = CallOptions<F> &
  (
    | (LimiterOptions & { readonly limiter?: undefined })
    | { readonly limiter: Limiter | RemoteLimiter; readonly limit?: undefined }
  );

/** A function whose refused calls return undefined. */
type Skippable<F extends Callable> = (
  ...args: Parameters<F>
) => ReturnType<F> extends Promise<infer R> ? Promise<R | undefined> : ReturnType<F> | undefined;

/** A wrapped function, and its limiter: `fn.limiter.change(limit)`. */
export type Throttled<F, L = Limiter | RemoteLimiter> = F & { readonly limiter: L };

// One signature of `throttle`, so that a mistake has one message. Its type parameters are the members that decide about
// the result; interfaces and no intersections, so that a message names the member.

interface OwnLimitOptions<F extends Callable, How extends HowDenied, B extends AnyBackend>
  extends CallOptions<F>,
    OptionsWith<B> {
  readonly onDeny?: OnDeny<F, How>;
  readonly limiter?: undefined;
}

interface SharedLimiterOptions<F extends Callable, How extends HowDenied, L>
  extends CallOptions<F> {
  readonly onDeny?: OnDeny<F, How>;
  readonly limiter: L;
  readonly limit?: undefined;
}

/** No value has this type: its name is in the compiler's message. */
interface NeedsAsyncFunction {
  readonly needsAsyncFunction: never;
}

/** A backend that decides in this process, or none. */
type LocalBackend = Exclude<AnyBackend, RemoteLimiterOptions['backend']>;

/** Options a function that is not async can have: it neither waits nor retries, and its limiter decides at once. */
interface SyncOptions {
  readonly wait?: false | NeedsAsyncFunction | undefined;
  readonly retry?: false | NeedsAsyncFunction | undefined;
  readonly backend?: LocalBackend | NeedsAsyncFunction;
  readonly limiter?: Limiter | NeedsAsyncFunction | undefined;
}

type FittingOptions<F extends Callable> = [F] extends [AsyncCallable] ? unknown : SyncOptions;

/**
 * Wraps a function. The result has the same type and passes `this` on. Its `limiter` is the one that it uses.
 *
 * A function that waits or retries must return a promise. Without these options any function can be wrapped, and one
 * that is not async stays so.
 */
export function throttle<
  F extends Callable,
  How extends HowDenied = 'throw',
  B extends AnyBackend = undefined,
  L extends Limiter | RemoteLimiter = LimiterOf<B>,
>(
  fn: F,
  options: (OwnLimitOptions<F, How, B> | SharedLimiterOptions<F, How, L>) & FittingOptions<F>,
): Throttled<[How] extends ['skip'] ? Skippable<F> : F, L> {
  return createThrottled(fn, options) as never;
}

function createThrottled(fn: Callable, options: object): unknown {
  if (typeof fn !== 'function') throw new ConfigError('fn', 'a function', fn);
  const reader = new OptionReader('', options, 'an object with a limit');
  const ofArguments = 'a function of the arguments';
  const call = reader.functions<CallFunctions>(
    ['key', 'cost', 'partition', 'level', 'priority', ...FLOW_FIELDS],
    ofArguments,
  );
  const settleHooks = reader.functions<SettleHooks>(['used', 'outcome', 'retryAfter'], ofArguments);
  const wait = reader.valueOr('wait', false);
  const retry = reader.valueOr('retry', false);
  const maxWaitMs = parseWaitMs(wait);
  const returnKind: ReturnKind = { isPromise: isAsyncFunction(fn), isKnown: isAsyncFunction(fn) };
  const signal = signalGetter(reader.get('signal'));
  const onRefused = createRefusalHandler(reader.valueOr('onDeny', 'throw'), returnKind, maxWaitMs);
  const limiter = resolveLimiter(options, reader.knownNames());
  const { clock, random } = limiter;
  const retryAfter = settleHooks.retryAfter ?? ((error) => retryAfterOfError(error, clock.now()));
  const plan: CallPlan = {
    ...call,
    ...{ signal, maxWaitMs, onRefused, returnKind, limiter },
    settleHooks: { ...settleHooks, retryAfter },
  };
  const retryPolicy =
    retry === false ? undefined : createRetryPolicy(retry as RetryOptions, clock, random);
  const isPlain =
    !limiter.isRemote &&
    limiter.isCheckOnly &&
    [call.partition, call.level, ...Object.values(settleHooks)].every((hook) => hook === undefined);
  const wrapped =
    limiter.isRemote || retryPolicy || wait !== false
      ? wrapAcquire(fn, plan, isPlain, retryPolicy)
      : (isPlain ? wrapCheck : wrapTryAcquire)(fn, plan, limiter);
  return Object.defineProperty(wrapped, 'limiter', { value: limiter });
}

/** A method decorator that keeps the method's type: the standard form, and that of `experimentalDecorators`. */
interface ThrottleDecorator<M extends Callable> {
  <F extends M>(
    target: object,
    name: string | symbol,
    descriptor: TypedPropertyDescriptor<F>,
  ): TypedPropertyDescriptor<F>;
  <F extends M>(method: F, context: ClassMethodDecoratorContext): F;
}

/**
 * Throttles a method: `@throttled({ limit: { bucket: { rate: '10/s' } } })`.
 *
 * A decorator cannot change a method's type: with `onDeny: 'skip'`, declare the method's result with `| undefined`.
 */
export function throttled(
  options: ThrottleOptions<Callable> & SyncOptions,
): ThrottleDecorator<Callable>;
export function throttled(options: ThrottleOptions<Callable>): ThrottleDecorator<AsyncCallable>;
export function throttled(options: ThrottleOptions<Callable>): ThrottleDecorator<never> {
  return (...decorated: unknown[]): never => {
    const wrap = (method: unknown): never => createThrottled(method as Callable, options) as never;
    const descriptor = decorated[2] as PropertyDescriptor | undefined;
    return descriptor
      ? ({ ...descriptor, value: wrap(descriptor.value) } as never)
      : wrap(decorated[0]);
  };
}

/** The options that read a call's arguments. */
type CallFunctions = Pick<
  CallOptions<Callable>,
  'key' | 'cost' | 'partition' | 'level' | 'priority' | keyof FlowOptions
>;

/** How a wrapped function is limited. */
interface CallPlan extends CallFunctions {
  readonly limiter: AnyLimiterInternals;
  readonly signal: ReturnType<typeof signalGetter>;
  readonly maxWaitMs: Millis;
  readonly onRefused: RefusalHandler;
  readonly settleHooks: SettleHooks;
  readonly returnKind: ReturnKind;
}

/** Whether a function returns promises is known after its first call; a refusal must look the same. */
interface ReturnKind {
  isPromise: boolean;
  isKnown: boolean;
}

function recordReturnKind<T>(returnKind: ReturnKind, result: T): T {
  returnKind.isPromise = isPromiseLike(result);
  returnKind.isKnown = true;
  return result;
}

/** A function that returns promises never throws at once. */
function rejectOrThrow({ isPromise }: ReturnKind, error: unknown): Promise<never> {
  if (isPromise) return Promise.reject(error);
  throw error;
}

// Three shapes of a call, the cheapest first. Arguments are passed on by spreading: where nothing else needs them, no
// array of them is created.

/** Nothing to hold and nothing to settle: a check, then the call. */
function wrapCheck(fn: Callable, plan: CallPlan, limiter: LimiterInternals): Callable {
  const { key: keyOf, cost: costOf, onRefused, returnKind } = plan;
  const refuse = (key: string, cost: number, decision: Decision, ...args: never[]): unknown => {
    const { retryAfterMs, reason, rule } = decision as Denial;
    const isNever = retryAfterMs === NEVER && reason === undefined;
    const detail = isNever ? limiter.explainNever(cost, key) : undefined;
    const known = { ...(detail && { detail }), ...(rule && { rule }) };
    const refused = { limit: limiter.refusingLimit(key, cost), retryAfterMs, ...known };
    return onRefused(key, reason === 'closed' ? { ...refused, reason } : refused, ...args);
  };
  return function throttled(this: never, ...args: never[]) {
    try {
      const key = keyOf === undefined ? '' : keyOf(...args);
      const cost = costOf === undefined ? 1 : costOf(...args);
      const decision = limiter.check(key, cost);
      if (decision.verdict !== 'allow') return refuse(key, cost, decision, ...args);
      return returnKind.isKnown
        ? fn.call(this, ...args)
        : recordReturnKind(returnKind, fn.call(this, ...args));
    } catch (error) {
      return rejectOrThrow(returnKind, error);
    }
  };
}

/** A permit now or a refusal; a function that is not async stays so. */
function wrapTryAcquire(fn: Callable, plan: CallPlan, limiter: LimiterInternals): Callable {
  const { onRefused, settleHooks, returnKind } = plan;
  return function throttled(this: never, ...args: never[]) {
    try {
      const key = keyFor(plan, args);
      const entry = limiter.tryAcquire(key, costFor(plan, args), checkOptionsOf(plan, args));
      if (entry.verdict === 'deny') return onRefused(key, entry, ...args);
      const result = runAndSettle(entry, settleHooks, () => fn.apply(this, args));
      return recordReturnKind(returnKind, result);
    } catch (error) {
      return rejectOrThrow(returnKind, error);
    }
  };
}

/** A permit, waiting if need be, from any limiter; with retries, each attempt gets, times and settles its own. */
function wrapAcquire(
  fn: Callable,
  plan: CallPlan,
  isPlain: boolean,
  retry: RetryPolicy | undefined,
): Callable {
  const { limiter, onRefused, settleHooks } = plan;
  const local = limiter.isRemote ? undefined : limiter;

  const queued = async (that: never, key: string, cost: number, args: never[]) => {
    const limits = acquireOptionsOf(plan, args);
    let last: Attempt | undefined;
    for (let n = 1; ; n++) {
      if (retry) limits.signal?.throwIfAborted();
      const entry =
        (retry && local?.tryPassWithPermit(key, cost, checkOptionsOf(plan, args))) ??
        (await limiter.acquire(key, cost, limits));
      // The result of the last attempt is worth more to the caller than the refusal of the next.
      if (entry.verdict === 'deny')
        return last ? unwrapAttempt(last) : onRefused(key, entry, ...args);
      if (!retry) return runAndSettle(entry, settleHooks, () => fn.apply(that, args));
      try {
        if (last) retry.notifyRetry(last, n);
        else retry.recordCall();
      } catch (error) {
        entry.settle({ outcome: 'ignored' });
        throw error;
      }
      const attempt = runAttempt(entry, settleHooks, args, () => fn.apply(that, args));
      entry[HOLD](attempt);
      last = await attempt;
      const delayMs = retry.delayMs(n, last);
      if (delayMs === undefined) return unwrapAttempt(last);
      if (!retry.spendBudget()) {
        limiter.recordDeniedRetry(key, cost, last.outcome);
        return unwrapAttempt(last);
      }
      await retry.sleep(delayMs, limits.signal);
    }
  };

  return function throttled(this: never, ...args: never[]) {
    try {
      const key = keyFor(plan, args);
      const cost = costFor(plan, args);
      // A call that need not wait starts at once: a limit on real time counts when the call starts, not when it is
      // granted. And the function returns a promise already; another costs more than the limit.
      if (local && !retry && !isAborted(plan, args)) {
        if (isPlain) {
          if (local.tryPass(key, cost)) return toPromise(fn.call(this, ...args));
        } else {
          const permit = local.tryPassWithPermit(key, cost, checkOptionsOf(plan, args));
          if (permit)
            return toPromise(runAndSettle(permit, settleHooks, () => fn.apply(this, args)));
        }
      }
      return queued(this, key, cost, args);
    } catch (error) {
      return Promise.reject(error);
    }
  };
}

const keyFor = ({ key }: CallPlan, args: never[]): string =>
  key === undefined ? '' : key(...args);

const costFor = ({ cost }: CallPlan, args: never[]): number =>
  cost === undefined ? 1 : cost(...args);

const isAborted = ({ signal }: CallPlan, args: never[]): boolean =>
  signal !== undefined && signal(...args)?.aborted === true;

const toPromise = (value: unknown): unknown =>
  value instanceof Promise ? value : Promise.resolve(value);

function unwrapAttempt(attempt: Attempt): unknown {
  if ('error' in attempt) throw attempt.error;
  return attempt.result;
}

function checkOptionsOf(plan: CallPlan, args: never[]): CheckOptions | undefined {
  return callClassOf(plan.partition?.(...args), plan.level?.(...args));
}

function acquireOptionsOf(plan: CallPlan, args: never[]): AcquireOptions {
  const signal = plan.signal?.(...args);
  const priority = plan.priority?.(...args) ?? 0;
  const wait = plan.maxWaitMs;
  const named = { ...checkOptionsOf(plan, args), ...flowOptionsOf(plan, args) };
  return { wait, priority, ...(signal && { signal }), ...named };
}

function flowOptionsOf(plan: CallPlan, args: never[]): FlowOptions | undefined {
  if (plan.flow === undefined && plan.tenant === undefined) return undefined;
  const given = FLOW_FIELDS.map((name) => [name, plan[name]?.(...args)] as const);
  return Object.fromEntries(given.filter(([, value]) => value !== undefined));
}

/** True for functions written with `async`; other functions that return promises are not recognised. */
const isAsyncFunction = (fn: Callable): boolean =>
  Object.prototype.toString.call(fn) === '[object AsyncFunction]';

type OnDenyFunction = (denial: Denial, ...args: never[]) => unknown;

/** A refused call, as a limiter reports it. */
type RefusedCall = Pick<Refusal, 'limit' | 'retryAfterMs' | 'detail' | 'rule'> &
  Partial<Pick<Refusal, 'reason' | 'waitedMs'>>;

/** Ends a call that was refused. */
type RefusalHandler = (key: string, refused: RefusedCall, ...args: never[]) => unknown;

function createRefusalHandler(
  onDeny: unknown,
  returnKind: ReturnKind,
  maxWaitMs: Millis,
): RefusalHandler {
  if (onDeny !== 'throw' && onDeny !== 'skip' && !isFunction<OnDenyFunction>(onDeny)) {
    throw new ConfigError('onDeny', 'throw, skip or a function', onDeny);
  }
  const refuse: RefusalHandler = (key, refused, ...args) => {
    if (onDeny === 'skip') return undefined;
    const { retryAfterMs, reason, limit, rule } = refused;
    const detail = refused.detail ?? waitDetail(refused, maxWaitMs);
    const known = {
      ...(reason && { reason }),
      ...(rule && { rule }),
      ...(detail && { detail }),
    };
    const denial: Denial = { verdict: 'deny', retryAfterMs, limit, ...known };
    if (onDeny === 'throw') throw new DeniedError(key, denial);
    return onDeny(denial, ...args);
  };
  return (...call) => (returnKind.isPromise ? (async () => refuse(...call))() : refuse(...call));
}

/** How a wait ended, for the error message. */
function waitDetail(
  { reason, waitedMs = 0, retryAfterMs }: RefusedCall,
  maxWaitMs: Millis,
): string | undefined {
  if (reason !== 'too-long' || maxWaitMs === 0) return undefined;
  // A call refused at once has waited some microseconds on the real clock.
  return Math.ceil(waitedMs) >= maxWaitMs
    ? `gave up after ${Math.round(waitedMs)} ms`
    : `the next permit is ${Math.ceil(retryAfterMs)} ms away, \`wait\` allows ${maxWaitMs} ms`;
}
