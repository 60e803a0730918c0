/**
 * What may be said about limiting requests, for every framework alike, and how it is read.
 */

import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader, parseWaitMs } from '../../core/options.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { type LimiterOptions, limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/sync-limiter.ts';
import { HEADER_KINDS, type HeaderKind } from './headers.ts';
import { type ClientResolver, readTrustProxy, type TrustProxy } from './proxy.ts';
import type { RefusalOverrides, RefusalResponse } from './refusal.ts';

/** `Request` is whatever the framework calls a request: Express' req, Fastify's request, Hono's c. */
export interface RequestOptions<Request> {
  /**
   * What a request counts against: the client's address (default), a header (the address where it
   * is missing), or what a function says (the address where it says nothing, or nonsense).
   */
  readonly key?: 'ip' | { readonly header: string } | ((request: Request) => RequestKey);
  /** What a request costs. Default 1, also where it is no number from 0 on. */
  readonly cost?: (request: Request) => number;
  /** Requests that are let through without being counted: whatever is as good as true. */
  readonly skip?: (request: Request) => unknown;
  /** Which part of an adaptive limit with partitions it counts against; none if there is no such. */
  readonly partition?: (request: Request) => string | null | undefined;
  /** Whom to believe about X-Forwarded-For. Default: what the framework was told, else nobody. */
  readonly trustProxy?: TrustProxy;
  /** Where the address of a connection comes from, if the adapter cannot know. */
  readonly address?: (request: Request) => string | null | undefined;
  /** How many bits of an IPv6 address make one client. Default 64. */
  readonly ipv6Prefix?: number;
  /** What responses say about the limit. Default draft; false: nothing. */
  readonly headers?: HeaderKind | false;
  /** Decide and count, but never refuse: nobody notices, unless `headers` are asked for. */
  readonly shadow?: boolean;
  /** Wait for a turn before answering: true, or no longer than this. Default false. */
  readonly wait?: boolean | Duration;
  /** How a request went, by what it was answered; undefined: as by default. */
  readonly outcome?: (request: Request, status: number) => Outcome | undefined;
  /** Says a refusal in other words; what it leaves out stays as it is. */
  readonly refuse?: (refusal: RefusalResponse, request: Request) => RefusalOverrides | undefined;
  /** When the limiter fails: let the request through (default), or answer 503. */
  readonly onUnavailable?: 'allow' | 'deny';
  /** Hears of a limiter that fails and of options that do. Default: one warning for each limit. */
  readonly onError?: (error: unknown) => void;
}

/** Ids of users may be numbers; nothing at all, and the address counts. */
export type RequestKey = string | number | bigint | null | undefined;

/** A limit of its own, or a limiter it shares with others. */
export type HttpOptions<Request> = RequestOptions<Request> &
  (LimiterOptions | { readonly limiter: Limiter | RemoteLimiter });

/** Options that are functions, and optional. */
const FUNCTION_OPTIONS = [
  'cost',
  'skip',
  'partition',
  'address',
  'outcome',
  'refuse',
  'onError',
] as const;

type FunctionOptions<Request> = {
  readonly [Name in (typeof FUNCTION_OPTIONS)[number]]: RequestOptions<Request>[Name];
};

/** The same, read. */
export interface HttpSettings<Request> extends FunctionOptions<Request> {
  readonly limiter: Limiter | RemoteLimiter;
  readonly key: ((request: Request) => RequestKey) | undefined;
  readonly keyHeader: string | undefined;
  readonly resolveClient: ClientResolver | undefined;
  readonly ipv6Prefix: number;
  readonly headers: HeaderKind | false;
  readonly shadow: boolean;
  /** Undefined: nobody waits. */
  readonly maxWaitMs: Millis | undefined;
  readonly isFailOpen: boolean;
}

/** @throws {ConfigError} naming the option that makes no sense. */
export function readSettings<Request>(options: HttpOptions<Request>): HttpSettings<Request> {
  const fields = new OptionReader('', options, 'an object with a limit or a limiter');
  const shadow = fields.boolean('shadow', false);
  const maxWaitMs = readWait(fields);
  const settings = {
    ...readKey<Request>(fields),
    ...readFunctions<Request>(fields),
    resolveClient: readTrustProxy(fields),
    ipv6Prefix: fields.number('ipv6Prefix', { min: 1, max: 128, integer: true }, 64),
    headers: readHeaders(fields, shadow),
    shadow,
    maxWaitMs: shadow ? undefined : maxWaitMs,
    isFailOpen: fields.oneOf('onUnavailable', ['allow', 'deny'], 'allow') === 'allow',
  };
  return { ...settings, limiter: readLimiter(fields, options) };
}

type AnyFunction = (...args: never[]) => unknown;

const isFunction = (value: unknown): value is AnyFunction => typeof value === 'function';

function readFunctions<Request>(fields: OptionReader): FunctionOptions<Request> {
  const read = FUNCTION_OPTIONS.map((name) => [
    name,
    fields.optional(name, isFunction, 'a function'),
  ]);
  return Object.fromEntries(read) as FunctionOptions<Request>;
}

function readKey<Request>(fields: OptionReader): Pick<HttpSettings<Request>, 'key' | 'keyHeader'> {
  const key = fields.get('key') ?? 'ip';
  if (key === 'ip') return { key: undefined, keyHeader: undefined };
  if (typeof key === 'function') return { key: key as never, keyHeader: undefined };
  if (!isRecord(key)) return fields.throwFor('key', "'ip', { header: 'name' } or a function");
  const own = new OptionReader('key', key);
  const isHeader = (value: unknown): value is string =>
    typeof value === 'string' && /^[\w-]+$/.test(value);
  const keyHeader = own.required('header', isHeader, "a header's name");
  own.finish();
  return { key: undefined, keyHeader: keyHeader.toLowerCase() };
}

function readHeaders(fields: OptionReader, shadow: boolean): HeaderKind | false {
  const given = fields.get('headers');
  if (given === false || (given === undefined && shadow)) return false;
  return fields.oneOf('headers', HEADER_KINDS, 'draft');
}

function readWait(fields: OptionReader): Millis | undefined {
  const wait = fields.get('wait') ?? false;
  return wait === false ? undefined : parseWaitMs(wait);
}

/** Whatever was not read by now belongs to the limiter, which knows its own mistakes. */
function readLimiter(fields: OptionReader, options: object): Limiter | RemoteLimiter {
  const rest = Object.fromEntries(
    Object.entries(options).filter(([name]) => !fields.wasRead(name)),
  );
  if (!('limiter' in rest)) return limiter(rest as unknown as LimiterOptions);
  const { limiter: given, ...others } = rest;
  const [stray] = Object.keys(others);
  if (stray !== undefined) throw new ConfigError(stray, 'left out when a limiter is given', stray);
  if (typeof (given as Limiter | null)?.acquire === 'function') return given as Limiter;
  throw new ConfigError('limiter', 'a limiter', given);
}
