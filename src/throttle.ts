/**
 * Any function, kept inside a limit.
 *
 *     const search = throttle(fetchResults, { limit: { spacing: { every: '6s' } }, wait: true });
 *     await search('sluice');       // same arguments, same result, one every six seconds
 *
 * This is the one place that turns a refusal into an exception: a function has no other way to say
 * that it did not run. `onDeny` chooses another way.
 */

import { isSignal } from './arguments.ts';
import type { Millis } from './clock.ts';
import type { Decision, Outcome } from './decision.ts';
import { type Duration, parseDuration } from './duration.ts';
import { ConfigError, type Denial, DeniedError } from './errors.ts';
import { type Limiter, type LimiterOptions, limiter } from './limiter.ts';
import type { Permit, Refusal, Settled } from './permit.ts';

/** Whatever can be called. */
export type Callable = (...args: never[]) => unknown;

type ResultOf<F extends Callable> = Awaited<ReturnType<F>>;

export interface CallOptions<F extends Callable> {
  /** Which key a call counts against. Default: one for all calls. */
  readonly key?: (...args: Parameters<F>) => string;
  /** What a call costs. Default 1. */
  readonly cost?: (...args: Parameters<F>) => number;
  /** What it really used, once that is known: the difference is given back, or charged. */
  readonly used?: (result: ResultOf<F>) => number;
  /** How it went. Default: ok; timeout for a TimeoutError; failed for any other error. */
  readonly outcome?: (error: unknown, result: ResultOf<F> | undefined) => Outcome;
  /** Wait for a turn, for as long as it takes (true) or no longer than this. Default false. */
  readonly wait?: boolean | Duration;
  /** Stops waiting when it aborts. */
  readonly signal?: AbortSignal;
  /** When refused: throw a DeniedError (default), skip (undefined), or return what this does. */
  readonly onDeny?: 'throw' | 'skip' | ((denial: Denial, ...args: Parameters<F>) => ResultOf<F>);
}

/** A limit of its own, or a limiter it shares with others. */
export type ThrottleOptions<F extends Callable> = CallOptions<F> &
  (LimiterOptions | { readonly limiter: Limiter });

/** A function that may be skipped may give nothing. */
type Skipped<F extends Callable> = (
  ...args: Parameters<F>
) => ReturnType<F> extends Promise<infer R> ? Promise<R | undefined> : ReturnType<F> | undefined;

/**
 * Wraps a function. What comes back has the same type, and passes `this` on.
 *
 * A function that has to wait must return a promise; without `wait` any function will do, and one
 * that is not async stays so.
 */
export function throttle<F extends Callable>(
  fn: F,
  options: ThrottleOptions<F> & { readonly onDeny: 'skip'; readonly wait?: false },
): Skipped<F>;
export function throttle<F extends Callable>(
  fn: F,
  options: ThrottleOptions<F> & { readonly wait?: false },
): F;
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
  const { key, cost, used, outcome, wait = false, signal, onDeny = 'throw', ...rest } = options;
  requireFunctions({ key, cost, used, outcome });
  if (signal !== undefined && !isSignal(signal)) {
    throw new ConfigError('signal', 'an AbortSignal', signal);
  }
  const maxWaitMs = readWait(wait);
  const engine = 'limiter' in rest ? requireLimiter(rest) : limiter(rest);
  const settling = { used, outcome } as Settling;
  const refuse = refuserOf(onDeny as OnDeny, isAsync(fn));
  const keyOf = key ?? oneForAll;
  const costOf = cost ?? one;
  // Nothing to hold and nothing to settle: a check, then the call.
  const isPlain = engine.isSimple && !used && !outcome;

  if (wait !== false) {
    const patience = { maxWaitMs, ...(signal && { signal }) };
    return async function throttled(this: never, ...args: Parameters<F>) {
      const [own, price] = [keyOf(...args), costOf(...args)];
      const isFree = isPlain && !signal?.aborted && !engine.hasLine(own);
      if (isFree && engine.ask(own, price).verdict === 'allow') return fn.apply(this, args);
      const entry = await engine.acquire(own, price, patience);
      return entry.verdict === 'deny'
        ? refuse(own, entry, args)
        : settled(entry, settling, () => fn.apply(this, args));
    };
  }

  if (isPlain && !key && !cost) {
    return function throttled(this: never, ...args: Parameters<F>) {
      const decision = engine.ask('');
      return decision.verdict === 'allow' ? fn.apply(this, args) : refuse('', decision, args);
    };
  }

  if (isPlain) {
    return function throttled(this: never, ...args: Parameters<F>) {
      const own = keyOf(...args);
      const decision = engine.ask(own, costOf(...args));
      return decision.verdict === 'allow' ? fn.apply(this, args) : refuse(own, decision, args);
    };
  }

  return function throttled(this: never, ...args: Parameters<F>) {
    const own = keyOf(...args);
    const entry = engine.tryAcquire(own, costOf(...args));
    return entry.verdict === 'deny'
      ? refuse(own, entry, args)
      : settled(entry, settling, () => fn.apply(this, args));
  };
}

/** The same for a method: `@throttled({ limit: { bucket: { rate: '10/s' } } })`. */
export function throttled<F extends Callable>(options: ThrottleOptions<F>) {
  return (method: F, _context: ClassMethodDecoratorContext): F =>
    throttle(method as never, options as never) as unknown as F;
}

const oneForAll = (): string => '';
const one = (): number => 1;

function requireFunctions(functions: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(functions)) {
    if (value === undefined || typeof value === 'function') continue;
    throw new ConfigError(name, 'a function of the arguments', value);
  }
}

function requireLimiter({ limiter: given, ...others }: { readonly limiter: Limiter }): Limiter {
  const [stray] = Object.keys(others);
  if (stray !== undefined) throw new ConfigError(stray, 'left out when a limiter is given', stray);
  if (typeof given?.acquire === 'function') return given;
  throw new ConfigError('limiter', 'a limiter', given);
}

function readWait(wait: unknown): Millis {
  if (wait === true || wait === false) return Infinity;
  const ms = parseDuration(wait);
  if (ms !== undefined && ms >= 0) return ms;
  throw new ConfigError('wait', 'true, false or a duration such as "2s" or 2000 (ms)', wait);
}

/** Known for functions written with `async`; others that return promises cannot be told apart. */
const isAsync = (fn: Callable): boolean =>
  Object.prototype.toString.call(fn) === '[object AsyncFunction]';

interface Settling {
  readonly used: ((result: unknown) => number) | undefined;
  readonly outcome: ((error: unknown, result: unknown) => Outcome) | undefined;
}

/** Does the work and says how it went, whether it answers at once or with a promise. */
function settled(permit: Permit, settling: Settling, work: () => unknown): unknown {
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

function done(permit: Permit, { used, outcome }: Settling, result: unknown): unknown {
  settleWith(permit, {}, () => ({
    ...(used && { used: used(result) }),
    ...(outcome && { outcome: outcome(undefined, result) }),
  }));
  return result;
}

/** The caller hears of its own error, whatever its `outcome` makes of it. */
function failed(permit: Permit, { outcome }: Settling, error: unknown): void {
  const usual = { outcome: outcomeOf(error) };
  try {
    settleWith(permit, usual, () => (outcome ? { outcome: outcome(error, undefined) } : usual));
  } catch {
    // settled as usual; the error that matters is on its way
  }
}

/** Settles with what `judge` says, and as usual if it cannot say: a permit is never lost. */
function settleWith(permit: Permit, usual: Settled, judge: () => Settled): void {
  try {
    permit.settle(judge());
  } finally {
    permit.settle(usual); // counts only if the first did not
  }
}

const outcomeOf = (error: unknown): Outcome =>
  error instanceof Error && error.name === 'TimeoutError' ? 'timeout' : 'failed';

const isPromise = (value: unknown): value is Promise<unknown> =>
  typeof value === 'object' &&
  value !== null &&
  'then' in value &&
  typeof value.then === 'function';

type OnDeny = 'throw' | 'skip' | ((denial: Denial, ...args: unknown[]) => unknown);

function refuserOf(onDeny: OnDeny, isAsync: boolean) {
  if (onDeny !== 'throw' && onDeny !== 'skip' && typeof onDeny !== 'function') {
    throw new ConfigError('onDeny', 'throw, skip or a function', onDeny);
  }
  const refuse = (key: string, decision: Decision | Refusal, args: readonly unknown[]): unknown => {
    if (onDeny === 'skip') return undefined;
    const denial = decision as Denial;
    if (onDeny === 'throw') throw new DeniedError(key, denial);
    return onDeny(denial, ...args);
  };
  if (!isAsync) return refuse;
  // An async function never throws at once, and always gives a promise.
  return async (...what: Parameters<typeof refuse>): Promise<unknown> => refuse(...what);
}
