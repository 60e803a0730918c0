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
import { isRecord, waitMsIn } from '../core/options.ts';
import { isRemote, type RemoteLimiter } from '../limiter/async-limiter.ts';
import { type LimiterOptions, limiter } from '../limiter/limiter.ts';
import type { Refusal } from '../limiter/permit.ts';
import type { AcquireOptions, Limiter } from '../limiter/sync-limiter.ts';
import { Retries, type RetryOptions, signalReader, type Tried } from './retry.ts';
import { isPromise, type Settling, settled, tried } from './run-with-permit.ts';

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
type Skipped<F extends Callable> = (
  ...args: Parameters<F>
) => ReturnType<F> extends Promise<infer R> ? Promise<R | undefined> : ReturnType<F> | undefined;

/** At once or not at all, and once: what a function that is not async can have. */
interface AtOnce {
  readonly wait?: false;
  readonly retry?: false;
  readonly share?: never;
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
  options: ThrottleOptions<F> & AtOnce & { readonly onDeny: 'skip' },
): Skipped<F>;
export function throttle<F extends Callable>(fn: F, options: ThrottleOptions<F> & AtOnce): F;
export function throttle<F extends (...args: never[]) => Promise<unknown>>(
  fn: F,
  options: ThrottleOptions<F> & { readonly onDeny: 'skip' },
): Skipped<F>;
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
  const engine = engineOf(rest);
  const shape: Shape = { givesPromises: isAsync(fn), isKnown: isAsync(fn) };
  const call = {
    engine,
    keyOf: key ?? oneForAll,
    costOf: cost ?? one,
    signalOf: signalReader(signal),
    partitionOf: partition,
    priorityOf: priority,
    waitMsMax: waitMsIn(wait),
    refuse: refuserOf(onDeny as OnDeny, shape),
    shape,
    settling: { used, outcome, retryAfter },
  } as unknown as Call;
  if (isRemote(engine)) {
    return retry === false ? asking(fn, call) : retrying(fn, call, retriesOf(retry, engine));
  }
  // Nothing to hold and nothing to settle: a check, then the call.
  const isPlain = engine.isSimple && !used && !outcome && !retryAfter && !partition;

  if (retry !== false) {
    return retrying(fn, call, retriesOf(retry, engine));
  }
  if (wait !== false) return waiting(fn, call, isPlain);
  if (!isPlain) return holding(fn, call);
  return key || cost ? checking(fn, call) : checkingOne(fn, call);
}

type Async = (...args: never[]) => Promise<unknown>;

/** What a decorator does with a method: gives back one of the same type. */
type Decorated<M extends Callable> = <F extends M>(
  method: F,
  context: ClassMethodDecoratorContext,
) => F;

/**
 * The same for a method: `@throttled({ limit: { bucket: { rate: '10/s' } } })`.
 *
 * A decorator cannot change a method's type: one that may be skipped should say so itself, with
 * `| undefined` in what it gives.
 */
export function throttled(options: ThrottleOptions<Callable> & AtOnce): Decorated<Callable>;
export function throttled(options: ThrottleOptions<Callable>): Decorated<Async>;
export function throttled(options: ThrottleOptions<Callable>): Decorated<never> {
  return (method) => throttle(method as never, options as never) as never;
}

/** How a wrapped function asks, refuses and settles. */
interface Call {
  readonly engine: Limiter;
  readonly keyOf: (...args: never[]) => string;
  readonly costOf: (...args: never[]) => number;
  readonly signalOf: ((...args: never[]) => AbortSignal | undefined) | undefined;
  readonly partitionOf: ((...args: never[]) => string | undefined) | undefined;
  readonly priorityOf: ((...args: never[]) => number) | undefined;
  readonly waitMsMax: Millis;
  readonly refuse: Refuse;
  readonly settling: Settling;
  readonly shape: Shape;
}

/** What a function gives is known once it has given something: a refusal must look the same. */
interface Shape {
  givesPromises: boolean;
  isKnown: boolean;
}

function learn<T>(shape: Shape, result: T): T {
  shape.givesPromises = isPromise(result);
  shape.isKnown = true;
  return result;
}

// Five ways to call, from the cheapest to the one that does everything. Arguments are handed on by
// spreading: where they go nowhere else, no list of them is ever made.

function checkingOne(fn: Callable, { engine, refuse, shape }: Call): Callable {
  return function throttled(this: never, ...args: never[]) {
    const decision = engine.ask('');
    if (decision.verdict !== 'allow') return refuse('', decision, engine.name, ...args);
    return shape.isKnown ? fn.call(this, ...args) : learn(shape, fn.call(this, ...args));
  };
}

function checking(fn: Callable, { engine, keyOf, costOf, refuse, shape }: Call): Callable {
  return function throttled(this: never, ...args: never[]) {
    const key = keyOf(...args);
    const decision = engine.ask(key, costOf(...args));
    if (decision.verdict !== 'allow') return refuse(key, decision, engine.name, ...args);
    return shape.isKnown ? fn.call(this, ...args) : learn(shape, fn.call(this, ...args));
  };
}

function holding(fn: Callable, call: Call): Callable {
  return function throttled(this: never, ...args: never[]) {
    const { engine, keyOf, costOf, refuse, settling, shape } = call;
    const key = keyOf(...args);
    const entry = engine.tryAcquire(key, costOf(...args), askOptions(call, args));
    return entry.verdict === 'deny'
      ? refuse(key, entry, entry.limit, ...args)
      : learn(
          shape,
          settled(entry, settling, () => fn.apply(this, args)),
        );
  };
}

function waiting(fn: Callable, call: Call, isPlain: boolean): Callable {
  const { engine, keyOf, costOf, refuse, settling } = call;
  const inLine = async (that: never, key: string, cost: number, args: never[]) => {
    const entry = await engine.acquire(key, cost, patienceOf(call, args));
    return entry.verdict === 'deny'
      ? refuse(key, entry, entry.limit, ...args)
      : settled(entry, settling, () => fn.apply(that, args));
  };

  return function throttled(this: never, ...args: never[]) {
    try {
      const key = keyOf(...args);
      const cost = costOf(...args);
      if (call.signalOf && isAborted(call, args)) return inLine(this, key, cost, args);
      // Whoever may go at once goes at once: a limit on real time is kept when the call is made, not
      // when it was granted. And the function makes a promise already; another costs more than the limit.
      if (isPlain) {
        if (engine.pass(key, cost)) return promised(fn.call(this, ...args));
      } else {
        const permit = engine.passHolding(key, cost, askOptions(call, args));
        if (permit) return promised(settled(permit, settling, () => fn.apply(this, args)));
      }
      return inLine(this, key, cost, args);
    } catch (error) {
      return Promise.reject(error);
    }
  };
}

const isAborted = ({ signalOf }: Call, args: never[]): boolean =>
  signalOf?.(...args)?.aborted === true;

const promised = (value: unknown): unknown =>
  value instanceof Promise ? value : Promise.resolve(value);

/** Somebody else decides, so every call waits for the answer at least. */
function asking(fn: Callable, call: Call): Callable {
  const { engine, keyOf, costOf, refuse, settling } = call;
  return async function throttled(this: never, ...args: never[]) {
    const key = keyOf(...args);
    const entry = await engine.acquire(key, costOf(...args), patienceOf(call, args));
    return entry.verdict === 'deny'
      ? refuse(key, entry, entry.limit, ...args)
      : settled(entry, settling, () => fn.apply(this, args));
  };
}

/** Each try is a call of its own: it asks, is timed and settles before the next is thought of. */
function retrying(fn: Callable, call: Call, retries: Retries): Callable {
  const { engine, keyOf, costOf, refuse, settling } = call;
  return async function throttled(this: never, ...args: never[]) {
    const [key, cost, patience] = [keyOf(...args), costOf(...args), patienceOf(call, args)];
    let last: Tried | undefined;
    for (let n = 1; ; n++) {
      patience.signal?.throwIfAborted();
      const entry =
        (isRemote(engine) ? undefined : engine.passHolding(key, cost, askOptions(call, args))) ??
        (await engine.acquire(key, cost, patience));
      if (entry.verdict === 'deny') {
        // What the first try brought is worth more to the caller than that there was no second.
        return last ? given(last) : refuse(key, entry, entry.limit, ...args);
      }
      if (last) retries.begin(last, n);
      last = await tried(entry, settling, () => fn.apply(this, args));
      const delayMs = retries.delayMs(n, last);
      if (delayMs === undefined) return given(last);
      await retries.sleep(delayMs, patience.signal);
    }
  };
}

function given(tried: Tried): unknown {
  if ('error' in tried) throw tried.error;
  return tried.result;
}

function askOptions({ partitionOf }: Call, args: never[]): { partition?: string } | undefined {
  const partition = partitionOf?.(...args);
  return partition === undefined ? undefined : { partition };
}

function patienceOf(call: Call, args: never[]): AcquireOptions {
  const { signalOf, priorityOf, waitMsMax } = call;
  const signal = signalOf?.(...args);
  const priority = priorityOf?.(...args) ?? 0;
  return { wait: waitMsMax, priority, ...(signal && { signal }), ...askOptions(call, args) };
}

const oneForAll = (): string => '';
const one = (): number => 1;

function requireFunctions(functions: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(functions)) {
    if (value === undefined || typeof value === 'function') continue;
    throw new ConfigError(name, 'a function of the arguments', value);
  }
}

const retriesOf = (
  retry: true | number | RetryOptions,
  { clock, random }: Limiter | RemoteLimiter,
): Retries => new Retries(retry, clock, random);

function engineOf(options: {
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
const isAsync = (fn: Callable): boolean =>
  Object.prototype.toString.call(fn) === '[object AsyncFunction]';

type OnDeny = 'throw' | 'skip' | ((denial: Denial, ...args: unknown[]) => unknown);

/** Answers for a call that was refused. */
type Refuse = (
  key: string,
  refused: Decision | Refusal,
  limit: string,
  ...args: never[]
) => unknown;

function refuserOf(onDeny: OnDeny, shape: Shape): Refuse {
  if (onDeny !== 'throw' && onDeny !== 'skip' && typeof onDeny !== 'function') {
    throw new ConfigError('onDeny', 'throw, skip or a function', onDeny);
  }
  const refuse: Refuse = (key, refused, limit, ...args) => {
    if (onDeny === 'skip') return undefined;
    const { retryAfterMs, reason } = refused as Refusal;
    const denial: Denial = { verdict: 'deny', retryAfterMs, limit, ...(reason && { reason }) };
    if (onDeny === 'throw') throw new DeniedError(key, denial);
    return onDeny(denial, ...args);
  };
  const asPromise = async (...what: Parameters<Refuse>): Promise<unknown> => refuse(...what);
  // What gives promises never throws at once, and always gives one.
  return (...what) => (shape.givesPromises ? asPromise(...what) : refuse(...what));
}
