/**
 * `sluice/fetch`: a fetch that stays inside a limit and learns from responses.
 *
 *     import { throttleFetch } from 'sluice/fetch';
 *     const fetch = throttleFetch({ limit: { adaptive: {} } });
 *     await fetch('https://api.example.com/things');   // waits for a permit, measures, backs off
 *
 * The key is the origin of a request, unless `key` says otherwise. A response reports its time to headers, back-pressure
 * (408, 429, 5xx but 501), Retry-After, and the remaining quota (RateLimit headers). Its body is neither read nor awaited.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError, type Denial } from '../core/errors.ts';
import { FLOW_FIELDS, type FlowOptions } from '../core/flow.ts';
import { OptionReader } from '../core/options.ts';
import type { RemoteLimiter } from '../limiter/async-limiter.ts';
import type { LimiterOptions } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/limiter-interface.ts';
import { resolveLimiter } from '../limiter/resolve-limiter.ts';
import { outcomeOfError } from '../throttle/error-outcome.ts';
import {
  type HeadersLike,
  isBackPressure,
  parseQuota,
  parseRetryAfter,
} from '../throttle/response-headers.ts';
import {
  type Attempt,
  createRetryPolicy,
  type RetryOptions,
  toRetryOptions,
} from '../throttle/retry.ts';
import { type CallOptions, type Throttled, throttle } from '../throttle/throttle.ts';

/** The members of a Response that are used. */
export interface ResponseLike {
  readonly status: number;
  readonly headers: HeadersLike;
  readonly body?: unknown;
}

/** Any fetch: the global one, undici's, or a custom one. */
export type FetchLike = (...args: never[]) => Promise<ResponseLike>;

type Args<F extends FetchLike> = Parameters<F>;
type ResponseOf<F extends FetchLike> = Awaited<ReturnType<F>>;

/** Options that are passed on to `throttle` as they are. */
const PASSED_ON = [
  ...(['cost', 'used', 'priority', 'partition', 'level', 'onDeny'] as const),
  ...FLOW_FIELDS,
] as const;

/** Options of `throttleFetch` beside the limit. */
export interface FetchCallOptions<F extends FetchLike>
  extends Pick<
    CallOptions<F>,
    'cost' | 'used' | 'priority' | 'partition' | 'level' | keyof FlowOptions
  > {
  /** The key of a request. Default: its origin, such as `https://api.example.com`. */
  readonly key?: ((...args: Args<F>) => string) | undefined;
  /** How long to wait for a permit: true without limit, false not at all. Default 30 seconds. */
  readonly wait?: boolean | Duration | undefined;
  /** Retry on back-pressure and timeouts: true, a number of retries, or options. Default: no retries. */
  readonly retry?: boolean | number | RetryOptions | undefined;
  /**
   * Whether the remaining quota in RateLimit headers bounds the local limit: true, false, or the unit that the limit
   * counts, as headers name it, such as `tokens`. Default true: `requests`.
   */
  readonly rateLimitHeaders?: boolean | string | undefined;
  /** The cool-down that a response requests, in ms; undefined: none. Default: its Retry-After on back-pressure. */
  readonly retryAfter?: (response: ResponseOf<F>) => Millis | undefined;
  /** The outcome of a request, to replace the default by status and error. */
  readonly outcome?: ((error: unknown, response: ResponseOf<F> | undefined) => Outcome) | undefined;
  /** The response to a refused request. Default: a DeniedError is thrown. */
  readonly onDeny?:
    | ((denial: Denial, ...args: Args<F>) => ResponseOf<F> | Promise<ResponseOf<F>>)
    | undefined;
}

/** The options of `throttleFetch`, and either those of a limiter or a limiter. */
export type FetchOptions<F extends FetchLike> = FetchCallOptions<F> &
  (LimiterOptions | { readonly limiter: Limiter | RemoteLimiter });

const DEFAULT_WAIT = '30s';

/** Wraps the global fetch, or the given one; the result has its type. */
export function throttleFetch(options: FetchOptions<typeof fetch>): Throttled<typeof fetch>;
export function throttleFetch<F extends FetchLike>(
  inner: F,
  options: FetchOptions<F>,
): Throttled<F>;
export function throttleFetch(first: unknown, second?: unknown): unknown {
  const isGiven = typeof first === 'function';
  const inner = (isGiven ? first : globalThis.fetch) as UntypedFetch;
  const options = (isGiven ? second : first) as FetchOptions<UntypedFetch>;
  if (typeof inner !== 'function') throw new ConfigError('fetch', 'a function', inner);
  return wrapFetch(inner, options);
}

/** A fetch as this file calls it. */
type UntypedFetch = (input: unknown, init?: RequestInitLike) => Promise<ResponseLike>;

interface RequestInitLike {
  readonly method?: string;
  readonly signal?: AbortSignal | null;
  readonly body?: unknown;
}

interface RequestLike {
  readonly url: string;
  readonly method: string;
  readonly signal?: AbortSignal;
  readonly body?: unknown;
  clone(): RequestLike;
}

function wrapFetch(inner: UntypedFetch, options: FetchOptions<UntypedFetch>): UntypedFetch {
  const reader = new OptionReader('', options, 'an object with a limit');
  const unit = readQuotaUnit(reader);
  const { retryAfter: givenRetryAfter } = reader.functions<FetchCallOptions<UntypedFetch>>(
    ['retryAfter'],
    'a function of the response',
  );
  const key = reader.valueOr('key', originOf) as (...args: Args<UntypedFetch>) => string;
  const retry = reader.valueOr('retry', false) as boolean | number | RetryOptions;
  const passedOn = PASSED_ON.flatMap((name) => (reader.has(name) ? [[name, options[name]]] : []));
  const settings: CallOptions<UntypedFetch> = {
    key,
    wait: reader.valueOr('wait', DEFAULT_WAIT) as boolean | Duration,
    signal: signalOf,
    outcome: reader.valueOr('outcome', outcomeOf) as typeof outcomeOf,
    retryAfter: (_error, response) => response && retryAfterOf(response),
    ...Object.fromEntries(passedOn),
  };
  const limiter = resolveLimiter(options, reader.knownNames());

  /** The number may come from a server: an invalid one is no cool-down. The limiter bounds it by `maxCooldown`. */
  const retryAfterOf = (response: ResponseLike): Millis | undefined => {
    if (givenRetryAfter) return pauseOr(givenRetryAfter(response));
    if (!isBackPressure(response.status)) return undefined;
    return parseRetryAfter(response.headers, limiter.clock.now());
  };

  /** Sends the request; the quota of its response is applied before the next check. */
  const request = async (input: unknown, init?: RequestInitLike): Promise<ResponseLike> => {
    const response = await inner(input, init);
    const quota = unit && parseQuota(response.headers, limiter.clock.now(), unit);
    if (quota) {
      const { remaining } = quota;
      // A Retry-After tells more than a reset, which may be the time until nothing spent counts any longer.
      const isTimed = isBackPressure(response.status) && retryAfterOf(response) !== undefined;
      void limiter.update(key(input, init), isTimed ? { remaining } : quota);
    }
    return response;
  };

  if (retry === false) return throttle(request, { ...settings, limiter });

  void createRetryPolicy(retry, limiter.clock, limiter.random); // validates what is replaced below
  const retryOptions = toRetryOptions(retry);
  const onRetry = (attempt: Attempt, n: number): void => {
    cancelBody(attempt.result as ResponseLike | undefined);
    retryOptions.onRetry?.(attempt, n);
  };
  const on = retryPredicate(retryOptions);
  return throttle(request, { ...settings, limiter, retry: { ...retryOptions, on, onRetry } });
}

/** The unit of the quota headers that bound the limit; undefined: none do. */
function readQuotaUnit(reader: OptionReader): string | undefined {
  const given = reader.valueOr('rateLimitHeaders', true);
  if (typeof given === 'boolean') return given ? 'requests' : undefined;
  if (typeof given === 'string' && /^[a-z_-]{1,40}$/.test(given)) return given;
  return reader.throwFor('rateLimitHeaders', 'true, false, or a unit such as "tokens"');
}

const pauseOr = (ms: Millis | undefined): Millis | undefined =>
  typeof ms === 'number' && ms >= 0 ? Math.min(ms, Number.MAX_SAFE_INTEGER) : undefined;

const isRequest = (input: unknown): input is RequestLike =>
  typeof input === 'object' && input !== null && 'url' in input && 'clone' in input;

/** The origin of a request; an invalid URL is left for fetch to report. */
function originOf(input: unknown): string {
  const runtime = globalThis as { location?: { href?: string } };
  try {
    return new URL(isRequest(input) ? input.url : String(input), runtime.location?.href).origin;
  } catch {
    return '';
  }
}

/** As in fetch, `null` in `init` removes the signal of the Request. */
function signalOf(input: unknown, init?: RequestInitLike): AbortSignal | undefined {
  if (init?.signal !== undefined) return init.signal ?? undefined;
  return isRequest(input) ? input.signal : undefined;
}

/** A stream can be sent only once; every other body can be sent again. */
function isReplayable(input: unknown, init?: RequestInitLike): boolean {
  const body = init?.body ?? (isRequest(input) ? input.body : undefined);
  if (typeof body !== 'object' || body === null) return true;
  return !('getReader' in body || Symbol.asyncIterator in body);
}

const IDEMPOTENT_METHODS = ['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'];

function isIdempotent(input: unknown, init?: RequestInitLike): boolean {
  const method = init?.method ?? (isRequest(input) ? input.method : 'GET');
  return IDEMPOTENT_METHODS.includes(String(method).toUpperCase());
}

/** The server did not process the request. */
const isRefusedByServer = ({ result }: Attempt): boolean =>
  [429, 503].includes((result as ResponseLike | undefined)?.status ?? 0);

/** Retries what `on` selects, if the request is idempotent or the server did not process it. */
function retryPredicate({ on = ['busy', 'timeout'] }: RetryOptions): (attempt: Attempt) => boolean {
  const isSelected = typeof on === 'function' ? on : ({ outcome }: Attempt) => on.includes(outcome);
  return (attempt) => {
    const [input, init] = attempt.args as Parameters<UntypedFetch>;
    if (!isReplayable(input, init)) return false;
    return (isIdempotent(input, init) || isRefusedByServer(attempt)) && isSelected(attempt);
  };
}

/** An unread body would keep its connection busy. */
function cancelBody(response: ResponseLike | undefined): void {
  const body = response?.body as { cancel?(): Promise<void> } | null | undefined;
  body?.cancel?.().catch(() => {}); // it is locked by another reader
}

function outcomeOf(error: unknown, response: ResponseLike | undefined): Outcome {
  if (response === undefined) return outcomeOfError(error);
  if (isBackPressure(response.status)) return 'busy';
  return response.status >= 400 ? 'failed' : 'ok';
}
