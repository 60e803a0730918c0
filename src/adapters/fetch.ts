/**
 * Any fetch, kept inside a limit that listens to the answers.
 *
 *     import { throttleFetch } from 'sluice/fetch';
 *     const fetch = throttleFetch({ limit: { adaptive: {} } });
 *     await fetch('https://api.example.com/things');   // waits its turn, learns, backs off
 *
 * Each origin has a limit of its own, unless `key` says otherwise. An answer is a lesson: how long
 * its headers took, whether it says "too much" (408, 429, 5xx but 501), when to come back
 * (Retry-After), what is left (RateLimit). The body is the caller's: it is neither read nor waited for.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError, type Denial } from '../core/errors.ts';
import type { RemoteLimiter } from '../limiter/async-limiter.ts';
import { internalsOf } from '../limiter/internals.ts';
import { type LimiterOptions, limiter } from '../limiter/limiter.ts';
import type { Limiter } from '../limiter/sync-limiter.ts';
import type { Attempt, RetryOptions } from '../throttle/retry.ts';
import { throttle } from '../throttle/throttle.ts';
import { type HeadersLike, isBackPressure, parseQuota, parseRetryAfter } from './fetch-headers.ts';

/** The least that is needed of a Response. */
export interface ResponseLike {
  readonly status: number;
  readonly headers: HeadersLike;
  readonly body?: unknown;
}

/** Any fetch: the global one, undici's, or one of your own. */
export type FetchLike = (...args: never[]) => Promise<ResponseLike>;

type Args<F extends FetchLike> = Parameters<F>;
type ResponseOf<F extends FetchLike> = Awaited<ReturnType<F>>;

/** What `throttleFetch` wants to know of each request. */
export interface FetchCallOptions<F extends FetchLike> {
  /** Which key a request counts against. Default: its origin, such as `https://api.example.com`. */
  readonly key?: (...args: Args<F>) => string;
  /** What a request costs. Default 1. */
  readonly cost?: (...args: Args<F>) => number;
  /** What it really used, as far as its headers tell. */
  readonly used?: (response: ResponseOf<F>) => number;
  /** How long to wait for a turn: true as long as it takes, false not at all. Default 30 seconds. */
  readonly wait?: boolean | Duration;
  /** Try again when the other side had enough: true, so many times, or in detail. Default: no. */
  readonly retry?: boolean | number | RetryOptions;
  /** Whether RateLimit headers are heard: what is left over there bounds what is left here. Default true. */
  readonly rateLimitHeaders?: boolean;
  /** How it went, where status and error do not say it well enough. */
  readonly outcome?: (error: unknown, response: ResponseOf<F> | undefined) => Outcome;
  /** With order priority, higher goes first. */
  readonly priority?: (...args: Args<F>) => number;
  /** Which part of a limit with partitions it counts against. */
  readonly partition?: (...args: Args<F>) => string | undefined;
  /** When refused: throw a DeniedError (default), or answer with what this gives. */
  readonly onDeny?: (denial: Denial, ...args: Args<F>) => ResponseOf<F> | Promise<ResponseOf<F>>;
}

/** What `throttleFetch` takes: that, and a limit or a limiter. */
export type FetchOptions<F extends FetchLike> = FetchCallOptions<F> &
  (LimiterOptions | { readonly limiter: Limiter | RemoteLimiter });

const DEFAULT_WAIT = '30s';

/** Wraps the global fetch, or the one given. What comes back has its type. */
export function throttleFetch(options: FetchOptions<typeof fetch>): typeof fetch;
export function throttleFetch<F extends FetchLike>(inner: F, options: FetchOptions<F>): F;
export function throttleFetch(first: unknown, second?: unknown): unknown {
  const isGiven = typeof first === 'function';
  const inner = (isGiven ? first : globalThis.fetch) as UntypedFetch;
  const options = (isGiven ? second : first) as FetchOptions<UntypedFetch>;
  if (typeof inner !== 'function') throw new ConfigError('fetch', 'a function', inner);
  if (typeof options !== 'object' || options === null) {
    throw new ConfigError('options', 'an object with a limit', options);
  }
  return wrapFetch(inner, options);
}

/** A fetch as it is called in here. */
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
  const { key = originOf, wait = DEFAULT_WAIT, retry = false, ...rest } = options;
  const {
    cost,
    used,
    rateLimitHeaders = true,
    outcome,
    priority,
    partition,
    onDeny,
    ...limit
  } = rest;
  if (typeof rateLimitHeaders !== 'boolean') {
    throw new ConfigError('rateLimitHeaders', 'true or false', rateLimitHeaders);
  }
  const own = internalsOf('limiter' in limit ? limit.limiter : limiter(limit));

  /** Does the request; what its answer says of the quota is heard before anybody else asks. */
  const request = async (input: unknown, init?: RequestInitLike): Promise<ResponseLike> => {
    const response = await inner(input, init);
    const quota = rateLimitHeaders ? parseQuota(response.headers, own.clock.now()) : undefined;
    if (quota) void own.update(key(input, init), quota);
    return response;
  };

  const settings = {
    limiter: own,
    key,
    wait,
    signal: signalOf,
    outcome: outcome ?? outcomeOf,
    retryAfter: (_error: unknown, response: ResponseLike | undefined): Millis | undefined =>
      response && isBackPressure(response.status)
        ? parseRetryAfter(response.headers, own.clock.now())
        : undefined,
    ...(cost && { cost }),
    ...(used && { used }),
    ...(priority && { priority }),
    ...(partition && { partition }),
    ...(onDeny && { onDeny: onDeny as never }),
  };
  const once = throttle(request, settings);
  if (retry === false) return once;

  const detail = typeof retry === 'number' ? { maxRetries: retry } : retry === true ? {} : retry;
  const again = (isSafe: boolean) =>
    throttle(request, {
      ...settings,
      retry: { ...detail, on: retryPredicate(detail, isSafe), onRetry },
    });
  const onRetry = (tried: Attempt, n: number): void => {
    cancelBody(tried.result as ResponseLike | undefined);
    detail.onRetry?.(tried, n);
  };
  const [safely, carefully] = [again(true), again(false)];

  return async (input, init) => {
    if (!isReplayable(input, init)) return once(input, init);
    const repeated = isIdempotent(input, init) ? safely : carefully;
    return repeated(input, init);
  };
}

const isRequest = (input: unknown): input is RequestLike =>
  typeof input === 'object' && input !== null && 'url' in input && 'clone' in input;

/** Where a request goes; what is no address is for fetch itself to complain about. */
function originOf(input: unknown): string {
  const host = globalThis as { location?: { href?: string } };
  try {
    return new URL(isRequest(input) ? input.url : String(input), host.location?.href).origin;
  } catch {
    return '';
  }
}

/** As fetch has it: `null` says that there is none, whatever the Request had. */
function signalOf(input: unknown, init?: RequestInitLike): AbortSignal | undefined {
  if (init?.signal !== undefined) return init.signal ?? undefined;
  return isRequest(input) ? input.signal : undefined;
}

/** A stream can be sent once. Everything else, and a Request without a body, as often as one likes. */
function isReplayable(input: unknown, init?: RequestInitLike): boolean {
  const body = init?.body ?? (isRequest(input) ? input.body : undefined);
  if (typeof body !== 'object' || body === null) return true;
  return !('getReader' in body || Symbol.asyncIterator in body);
}

const IDEMPOTENT_METHODS = ['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'];

/** Doing it twice comes to the same. */
function isIdempotent(input: unknown, init?: RequestInitLike): boolean {
  const method = init?.method ?? (isRequest(input) ? input.method : 'GET');
  return IDEMPOTENT_METHODS.includes(String(method).toUpperCase());
}

/** The other side says that it has done nothing. */
const isRefusedByServer = ({ result }: Attempt): boolean =>
  [429, 503].includes((result as ResponseLike | undefined)?.status ?? 0);

/** What is worth another try: anything that says "later", if doing it twice can do no harm. */
function retryPredicate(retry: RetryOptions, isSafe: boolean): (tried: Attempt) => boolean {
  const { on = ['busy', 'timeout'] } = retry;
  const isWanted = typeof on === 'function' ? on : ({ outcome }: Attempt) => on.includes(outcome);
  return (tried) => (isSafe || isRefusedByServer(tried)) && isWanted(tried);
}

/** A body that nobody will read keeps its connection busy. */
function cancelBody(response: ResponseLike | undefined): void {
  const body = response?.body as { cancel?(): Promise<void> } | null | undefined;
  body?.cancel?.().catch(() => {}); // somebody else is reading it after all
}

function outcomeOf(error: unknown, response: ResponseLike | undefined): Outcome {
  if (response === undefined) return outcomeOfError(error);
  if (isBackPressure(response.status)) return 'busy';
  return response.status >= 400 ? 'failed' : 'ok';
}

/** The other side, or the way to it, did not answer in time. */
const TIMEOUT_CODES = [
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
];

/** The other side is there, and takes nothing more; or it has just gone away. */
const BUSY_CODES = ['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'];

/** An abort by the caller says nothing about load; a timeout does, whoever set it. */
function outcomeOfError(error: unknown): Outcome {
  if (error instanceof Error && error.name === 'TimeoutError') return 'timeout';
  const codes = errorCodesOf(error);
  if (codes.some((code) => TIMEOUT_CODES.includes(code))) return 'timeout';
  return codes.some((code) => BUSY_CODES.includes(code)) ? 'busy' : 'failed';
}

/** How deep an error may stand within errors. */
const MAX_CAUSE_DEPTH = 4;

/** The codes of an error and of what caused it; an address tried twice has two causes. */
function errorCodesOf(error: unknown, depth = 0): string[] {
  if (typeof error !== 'object' || error === null || depth > MAX_CAUSE_DEPTH) return [];
  const { code, cause, errors } = error as { code?: unknown; cause?: unknown; errors?: unknown };
  const inner = [cause, ...(Array.isArray(errors) ? errors : [])];
  const own = typeof code === 'string' ? [code] : [];
  return [...own, ...inner.flatMap((one) => errorCodesOf(one, depth + 1))];
}
