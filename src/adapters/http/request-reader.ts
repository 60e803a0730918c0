/**
 * Reads from a request what the options define: whether it is counted, its key, cost, partition and level.
 *
 * Much of that comes from the client: a header, a length, a service class. If an invalid value exempted a request, clients
 * would send invalid values. So no failure of an option exempts a request; a default is used and the error is reported:
 *
 *     skip        fails                                  the request is counted
 *     key         fails, or returns no valid key         the client's address
 *     address     fails, or returns no valid address     the connection's address
 *     cost        fails, or returns no number >= 0       1
 *     partition   fails, or is unknown to the limit      no partition
 *     level       fails, or is unknown to the limit      the lowest level
 */

import { ConfigError } from '../../core/errors.ts';
import type { CheckOptions } from '../../limiter/limiter-interface.ts';
import { callClassOf } from '../../limiter/validate.ts';
import { clientKeyOf, type IpAddress, parseAddress } from './address.ts';
import { type ErrorReporter, requireSync } from './error-reporter.ts';
import type { HttpSettings } from './settings.ts';

/** Reads a framework's request. */
export interface RequestAccessor<Request> {
  /** A header by its lower-case name; several of the same name are joined by commas. */
  header(request: Request, name: string): string | undefined;
  /** The remote address of the connection. */
  address(request: Request): string | undefined;
  /** The client's address according to the framework's own proxy setting, if it has one. */
  ip?(request: Request): string | undefined;
  /** Node's own message, which tells whether headers were dropped. */
  message?(request: Request): NodeMessage | undefined;
}

/** The members of Node's `IncomingMessage` that tell whether headers were dropped. */
export interface NodeMessage {
  /** Names and values in turn. */
  readonly rawHeaders?: readonly string[];
  readonly socket?: object | undefined;
}

/** Headers that a Node server keeps of a request unless `maxHeadersCount` says otherwise: names and values in turn. */
const DEFAULT_RAW_HEADERS = 2000;

/** The key that all requests without a known address share. */
const UNKNOWN_CLIENT = 'unknown';

/** The key of all requests, where a limit is for the whole server. */
const SERVER_KEY = 'server';

export class RequestReader<Request> {
  readonly #settings: HttpSettings<Request>;
  readonly #accessor: RequestAccessor<Request>;
  readonly #reporter: ErrorReporter;
  /** Partitions and levels that the limit has accepted. Bounded by the number it has. */
  readonly #knownNames = { partition: new Set<unknown>(), level: new Set<unknown>() };

  constructor(
    settings: HttpSettings<Request>,
    accessor: RequestAccessor<Request>,
    reporter: ErrorReporter,
  ) {
    this.#settings = settings;
    this.#accessor = accessor;
    this.#reporter = reporter;
  }

  /**
   * True if Node may have dropped headers: beyond `maxHeadersCount` of the server it ignores the rest. They may name the
   * client, and no default is safe in their place.
   */
  hasDroppedHeaders(request: Request): boolean {
    const { rawHeaders, socket } = this.#accessor.message?.(request) ?? {};
    if (rawHeaders === undefined) return false;
    const { server } = (socket ?? {}) as { server?: { maxHeadersCount?: number | null } | null };
    const max = (server?.maxHeadersCount ?? DEFAULT_RAW_HEADERS / 2) * 2;
    return max > 0 && rawHeaders.length >= max;
  }

  isSkipped(request: Request): boolean {
    const { skip } = this.#settings;
    return skip !== undefined && this.#callOption('skip', skip, request, Boolean) === true;
  }

  keyOf(request: Request): string {
    const { key, keyHeader, isServerWide } = this.#settings;
    if (isServerWide) return SERVER_KEY;
    if (keyHeader !== undefined) {
      const value = this.#accessor.header(request, keyHeader);
      // Prefixed with the header's name: a header value must not collide with another client's address.
      return value ? `${keyHeader}=${value}` : this.#clientKeyOf(request);
    }
    const chosen = key && this.#callOption('key', key, request, validateKey);
    return chosen ?? this.#clientKeyOf(request);
  }

  costOf(request: Request): number {
    const { cost } = this.#settings;
    return (cost && this.#callOption('cost', cost, request, validateCost)) ?? 1;
  }

  /** The partition and the level of a request, where the options name one. */
  checkOptionsOf(request: Request): CheckOptions | undefined {
    return callClassOf(this.#nameOf('partition', request), this.#nameOf('level', request));
  }

  #nameOf(option: 'partition' | 'level', request: Request): string | undefined {
    const read = this.#settings[option];
    return (
      read && this.#callOption(option, read, request, (value) => this.#validateName(option, value))
    );
  }

  /** The result of a function option, validated; undefined if it fails or is invalid. */
  #callOption<T>(
    name: string,
    option: (request: Request) => unknown,
    request: Request,
    validate: (value: unknown) => T,
  ): T | undefined {
    try {
      return validate(requireSync(name, option(request)));
    } catch (error) {
      this.#reporter.report('option', error);
      return undefined;
    }
  }

  #clientKeyOf(request: Request): string {
    const address = this.#addressOf(request);
    return address === undefined ? UNKNOWN_CLIENT : clientKeyOf(address, this.#settings.ipv6Prefix);
  }

  /** The framework's address may be invalid: behind a trusted proxy it is whatever the proxy was sent. */
  #addressOf(request: Request): IpAddress | undefined {
    const { resolveClient, address } = this.#settings;
    const accessor = this.#accessor;
    try {
      const known =
        (address && this.#callOption('address', address, request, validateAddress)) ??
        (resolveClient ? undefined : parseIfPresent(accessor.ip?.(request))) ??
        parseIfPresent(accessor.address(request));
      return resolveClient
        ? resolveClient(known, accessor.header(request, 'x-forwarded-for'))
        : known;
    } catch (error) {
      this.#reporter.report('option', error);
      return undefined;
    }
  }

  /** Checked once per name, by a peek, which throws if the limit does not have it. */
  #validateName(option: 'partition' | 'level', value: unknown): string | undefined {
    if (value === undefined || value === null) return undefined;
    const name = value as string;
    if (!this.#knownNames[option].has(name)) {
      const { limiter } = this.#settings;
      const expected = `left out: limits with a remote backend have no ${option}s`;
      if (limiter.isRemote) throw new ConfigError(option, expected, name);
      limiter.peek(UNKNOWN_CLIENT, 0, { [option]: name });
      this.#knownNames[option].add(name);
    }
    return name;
  }
}

const parseIfPresent = (text: string | undefined): IpAddress | undefined =>
  text ? parseAddress(text) : undefined;

/** User ids are often numbers. For undefined, null and '' the address is used. */
function validateKey(value: unknown): string | undefined {
  if (value === undefined || value === null || value === '') return undefined;
  if (typeof value === 'string') return value;
  if (typeof value === 'bigint' || Number.isFinite(value)) return String(value);
  throw new ConfigError('key', 'a string or a number', value);
}

function validateCost(value: unknown): number {
  if (typeof value === 'number' && value >= 0) return value;
  throw new ConfigError('cost', 'a number of at least 0', value);
}

function validateAddress(value: unknown): IpAddress | undefined {
  if (value === undefined || value === null || value === '') return undefined;
  const address = typeof value === 'string' ? parseAddress(value) : undefined;
  if (address !== undefined) return address;
  throw new ConfigError('address', 'an IP address', value);
}
