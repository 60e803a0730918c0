/**
 * What the options say of a request: whether it counts, against whom, how much, and as part of what.
 *
 * Much of that was written by the client: a header, a length, the name of a class of service. If
 * nonsense there opened the door, clients would write nonsense. So nothing in here lets a request
 * off; where an option fails, something plainer holds, and somebody hears of it:
 *
 *     skip        fails                             it counts
 *     key         fails, or is no key               the address counts
 *     address     fails, or is no address           the connection's counts
 *     cost        fails, or is no number from 0 on  1
 *     partition   fails, or the limit has no such   none
 */

import { ConfigError } from '../../core/errors.ts';
import { isRemote } from '../../limiter/async-limiter.ts';
import { clientKeyOf, type IpAddress, parseAddress } from './address.ts';
import { type ErrorReporter, requireSync } from './report.ts';
import type { HttpSettings } from './settings.ts';

/** How to look at a request of some framework. */
export interface RequestAccessor<Request> {
  /** A header by its name in small letters; several of the same name joined by commas. */
  header(request: Request, name: string): string | undefined;
  /** Who the connection is from. */
  address(request: Request): string | undefined;
  /** Who the framework says it is from, if it has a setting for proxies of its own. */
  ip?(request: Request): string | undefined;
}

/** All requests whose address nobody knows share one key. */
const UNKNOWN_CLIENT = 'unknown';

export class RequestReader<Request> {
  readonly #settings: HttpSettings<Request>;
  readonly #accessor: RequestAccessor<Request>;
  readonly #reporter: ErrorReporter;
  /** Partitions the limit is known to have: no more than it has. */
  readonly #knownPartitions = new Set<unknown>();

  constructor(
    settings: HttpSettings<Request>,
    reader: RequestAccessor<Request>,
    reporter: ErrorReporter,
  ) {
    this.#settings = settings;
    this.#accessor = reader;
    this.#reporter = reporter;
  }

  isSkipped(request: Request): boolean {
    const { skip } = this.#settings;
    return skip !== undefined && this.#callOption('skip', skip, request, Boolean) === true;
  }

  keyOf(request: Request): string {
    const { key, keyHeader } = this.#settings;
    if (keyHeader !== undefined) {
      const value = this.#accessor.header(request, keyHeader);
      // Named, so that nobody passes a header that looks like somebody else's address.
      return value ? `${keyHeader}=${value}` : this.#clientKeyOf(request);
    }
    return (
      (key && this.#callOption('key', key, request, validateKey)) ?? this.#clientKeyOf(request)
    );
  }

  costOf(request: Request): number {
    const { cost } = this.#settings;
    return (cost && this.#callOption('cost', cost, request, validateCost)) ?? 1;
  }

  partitionOf(request: Request): string | undefined {
    const { partition } = this.#settings;
    return (
      partition &&
      this.#callOption('partition', partition, request, (said) => this.#validatePartition(said))
    );
  }

  /** What a function of the user's says, read; undefined where it fails or says nonsense. */
  #callOption<T>(
    name: string,
    say: (request: Request) => unknown,
    request: Request,
    read: (said: unknown) => T,
  ): T | undefined {
    try {
      return read(requireSync(name, say(request)));
    } catch (error) {
      this.#reporter.optionFailed(error);
      return undefined;
    }
  }

  #clientKeyOf(request: Request): string {
    const address = this.#addressOf(request);
    return address === undefined ? UNKNOWN_CLIENT : clientKeyOf(address, this.#settings.ipv6Prefix);
  }

  #addressOf(request: Request): IpAddress | undefined {
    const { resolveClient } = this.#settings;
    try {
      if (!resolveClient)
        return (
          this.#addressFromOption(request) ??
          this.#addressFromFramework(request) ??
          this.#addressFromConnection(request)
        );
      const from = this.#addressFromOption(request) ?? this.#addressFromConnection(request);
      return resolveClient(from, this.#accessor.header(request, 'x-forwarded-for'));
    } catch (error) {
      this.#reporter.optionFailed(error);
      return undefined;
    }
  }

  #addressFromOption(request: Request): IpAddress | undefined {
    const { address } = this.#settings;
    return address && this.#callOption('address', address, request, validateAddress);
  }

  /** A framework that believes a proxy believes whatever the proxy was told: it may be no address. */
  #addressFromFramework(request: Request): IpAddress | undefined {
    return parseIfPresent(this.#accessor.ip?.(request));
  }

  #addressFromConnection(request: Request): IpAddress | undefined {
    return parseIfPresent(this.#accessor.address(request));
  }

  /** A limit is asked once whether it has a partition, by looking. It complains if not. */
  #validatePartition(said: unknown): string | undefined {
    if (said === undefined || said === null) return undefined;
    const partition = said as string;
    if (!this.#knownPartitions.has(partition)) {
      const { limiter } = this.#settings;
      if (isRemote(limiter)) {
        throw new ConfigError('partition', 'left out: a shared limit has none', partition);
      }
      limiter.peek(UNKNOWN_CLIENT, 0, { partition });
      this.#knownPartitions.add(partition);
    }
    return partition;
  }
}

const parseIfPresent = (text: string | undefined): IpAddress | undefined =>
  text ? parseAddress(text) : undefined;

/** Ids are often numbers. Nothing, in whatever form, is no key: the address counts. */
function validateKey(said: unknown): string | undefined {
  if (said === undefined || said === null || said === '') return undefined;
  if (typeof said === 'string') return said;
  if (typeof said === 'bigint' || Number.isFinite(said)) return String(said);
  throw new ConfigError('key', 'a text or a number', said);
}

function validateCost(said: unknown): number {
  if (typeof said === 'number' && said >= 0) return said;
  throw new ConfigError('cost', 'a number of at least 0', said);
}

function validateAddress(said: unknown): IpAddress | undefined {
  if (said === undefined || said === null || said === '') return undefined;
  const address = typeof said === 'string' ? parseAddress(said) : undefined;
  if (address !== undefined) return address;
  throw new ConfigError('address', 'an address', said);
}
