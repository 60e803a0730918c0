import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { isRecord, OptionReader, parseWaitMs } from '../../core/options.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import type { AnyLimiterInternals } from '../../limiter/internals.ts';
import type { LimiterOptions } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import { resolveLimiter } from '../../limiter/resolve-limiter.ts';
import { HEADER_KINDS, type HeaderKind } from './headers.ts';
import { type ClientResolver, readTrustProxy, type TrustProxy } from './proxy.ts';
import type { RefusalOverrides, RefusalResponse } from './refusal.ts';
import type { RequestLimiter } from './request-limiter.ts';

/** `Request` is the framework's request: Express' req, Fastify's request, Hono's c. */
export interface RequestOptions<Request> {
  /**
   * The key of a request: the client's address, a header, the result of a function, or `'server'`: one key for all
   * requests. Default: `'server'` for limits that protect capacity (concurrency, adaptive, busy), else `'ip'`. Where the
   * header is missing, or the function returns nothing or an invalid key, the address is used.
   */
  readonly key?:
    | 'ip'
    | 'server'
    | { readonly header: string }
    | ((request: Request) => RequestKey)
    | undefined;
  /** The cost of a request. Default 1, also where the function returns no number of at least 0. */
  readonly cost?: ((request: Request) => number) | undefined;
  /** Requests to admit without counting them: any truthy result. */
  readonly skip?: ((request: Request) => unknown) | undefined;
  /** The partition of an adaptive limit that a request belongs to; none if the limit has no such partition. */
  readonly partition?: (request: Request) => string | null | undefined;
  /** The level of a request, of a limit with `priorities`; the lowest if the limit has no such level. */
  readonly level?: (request: Request) => string | null | undefined;
  /** Which proxies to trust for X-Forwarded-For. Default: the framework's setting, else none. */
  readonly trustProxy?: TrustProxy | undefined;
  /** The address of a connection, for runtimes where the adapter cannot know it. */
  readonly address?: (request: Request) => string | null | undefined;
  /** How many bits of an IPv6 address identify a client. Default 64. */
  readonly ipv6Prefix?: number | undefined;
  /** Which rate limit headers responses carry; false: none. Default draft, with the key `'server'` none. */
  readonly headers?: HeaderKind | false | undefined;
  /** Decide and count, but never refuse. Responses stay as they are, unless `headers` is set. */
  readonly shadow?: boolean | undefined;
  /** Queue requests that are over the limit: true, or for at most this long. Default false. */
  readonly wait?: boolean | Duration | undefined;
  /** Shed requests while the event loop is later than this. Default 100 ms where a limit protects the server's capacity. */
  readonly maxEventLoopDelay?: Duration | false | undefined;
  /** The outcome of a request by the status of its response; undefined: the default. */
  readonly outcome?: (request: Request, status: number) => Outcome | undefined;
  /** Changes a refusal; what the result leaves out stays as it is. */
  readonly refuse?: (refusal: RefusalResponse, request: Request) => RefusalOverrides | undefined;
  /** When the limiter fails: admit the request (fail open, the default), or answer 503 (fail closed). */
  readonly onUnavailable?: 'allow' | 'deny' | undefined;
  /** Receives errors of the limiter and of function options. Default: one process warning per limit. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

/** A key as a function may return it: user ids may be numbers; for null and undefined the address is used. */
export type RequestKey = string | number | bigint | null | undefined;

/** The options of an adapter, and either those of a limiter or a limiter. */
export type HttpOptions<Request> = RequestOptions<Request> &
  (LimiterOptions | { readonly limiter: Limiter | RemoteLimiter });

/** Middleware, the limiter that decides, and its state for a request: `middleware.report(request, 'success')`. */
export type WithLimiter<Middleware, Request> = Middleware &
  Pick<RequestLimiter<Request>, 'limiter' | 'keyOf' | 'report' | 'inspect'>;

export const withLimiter = <Middleware, Request>(
  middleware: Middleware,
  limit: RequestLimiter<Request>,
): WithLimiter<Middleware, Request> =>
  Object.assign(middleware as Middleware & object, {
    limiter: limit.limiter,
    keyOf: limit.keyOf.bind(limit),
    report: limit.report.bind(limit),
    inspect: limit.inspect.bind(limit),
  });

/** Options that are functions, all optional. */
const FUNCTION_OPTIONS = [
  'cost',
  'skip',
  'partition',
  'level',
  'address',
  'outcome',
  'refuse',
  'onError',
] as const;

type FunctionOptions<Request> = Pick<RequestOptions<Request>, (typeof FUNCTION_OPTIONS)[number]>;

/** The options, validated. */
export interface HttpSettings<Request> extends FunctionOptions<Request> {
  readonly limiter: AnyLimiterInternals;
  readonly key: ((request: Request) => RequestKey) | undefined;
  readonly keyHeader: string | undefined;
  /** True: all requests have one key. */
  readonly isServerWide: boolean;
  readonly resolveClient: ClientResolver | undefined;
  readonly ipv6Prefix: number;
  readonly headers: HeaderKind | false;
  readonly shadow: boolean;
  /** Undefined: requests do not wait. */
  readonly maxWaitMs: Millis | undefined;
  /** Infinity: event-loop delay sheds nothing. */
  readonly maxEventLoopDelayMs: Millis;
  readonly isFailOpen: boolean;
}

/** `frameworkOptions` are read by the adapter itself. @throws {ConfigError} naming the option that is invalid. */
export function readSettings<Request>(
  options: HttpOptions<Request>,
  frameworkOptions: readonly string[] = [],
): HttpSettings<Request> {
  const reader = new OptionReader('', options, 'an object with a limit or a limiter');
  const shadow = reader.boolean('shadow', false);
  const maxWaitMs = readWait(reader);
  const settings = {
    ...readKey<Request>(reader),
    ...reader.functions<FunctionOptions<Request>>(FUNCTION_OPTIONS, 'a function'),
    resolveClient: readTrustProxy(reader),
    ipv6Prefix: reader.number('ipv6Prefix', { min: 1, max: 128, integer: true }, 64),
    headers: readHeaders(reader),
    shadow,
    maxWaitMs: shadow ? undefined : maxWaitMs,
    maxEventLoopDelayMs: readMaxEventLoopDelay(reader),
    isFailOpen: reader.oneOf('onUnavailable', ['allow', 'deny'], 'allow') === 'allow',
  };
  const adapterOptions = [...reader.knownNames(), ...frameworkOptions];
  const limiter = resolveLimiter(options, adapterOptions);
  // These depend on the limit: one that protects the server's capacity is for all clients together.
  const { isServerWide = limiter.isCapacity, headers, maxEventLoopDelayMs } = settings;
  const isGuard = isServerWide && limiter.isCapacity;
  return {
    ...settings,
    limiter,
    isServerWide,
    // The remaining quota of a limit that all clients share is no promise to one of them.
    headers: headers ?? (shadow || isServerWide ? false : 'draft'),
    maxEventLoopDelayMs: maxEventLoopDelayMs ?? (isGuard ? DEFAULT_MAX_DELAY_MS : Infinity),
  };
}

/** `isServerWide` undefined: the limit decides. */
function readKey<Request>(reader: OptionReader): Pick<
  HttpSettings<Request>,
  'key' | 'keyHeader'
> & {
  readonly isServerWide: boolean | undefined;
} {
  const key = reader.get('key');
  const none = { key: undefined, keyHeader: undefined, isServerWide: false };
  if (key === undefined) return { ...none, isServerWide: undefined };
  if (key === 'ip' || key === 'server') return { ...none, isServerWide: key === 'server' };
  if (typeof key === 'function') return { ...none, key: key as never };
  if (!isRecord(key))
    return reader.throwFor('key', "'ip', 'server', { header: 'name' } or a function");
  const keyReader = new OptionReader('key', key);
  const keyHeader = keyReader.required('header', isHeaderName, 'the name of a header');
  keyReader.finish();
  return { ...none, keyHeader: keyHeader.toLowerCase() };
}

const isHeaderName = (value: unknown): value is string =>
  typeof value === 'string' && /^[\w-]+$/.test(value);

function readHeaders(reader: OptionReader): HeaderKind | false | undefined {
  const given = reader.get('headers');
  return given === undefined || given === false
    ? given
    : reader.oneOf('headers', HEADER_KINDS, 'draft');
}

/** A delay that garbage collection alone does not cause, and that clients tolerate. */
const DEFAULT_MAX_DELAY_MS: Millis = 100;

function readMaxEventLoopDelay(reader: OptionReader): Millis | undefined {
  const given = reader.get('maxEventLoopDelay');
  if (given === undefined) return undefined;
  return given === false ? Infinity : reader.duration('maxEventLoopDelay');
}

function readWait(reader: OptionReader): Millis | undefined {
  const wait = reader.get('wait') ?? false;
  return wait === false ? undefined : parseWaitMs(wait);
}
