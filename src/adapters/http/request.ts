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
import { type Address, networkKey, parseAddress } from './address.ts';
import { atOnce, type Reporter } from './report.ts';
import type { Settings } from './settings.ts';

/** How to look at a request of some framework. */
export interface Reader<Request> {
  /** A header by its name in small letters; several of the same name joined by commas. */
  header(request: Request, name: string): string | undefined;
  /** Who the connection is from. */
  address(request: Request): string | undefined;
  /** Who the framework says it is from, if it has a setting for proxies of its own. */
  ip?(request: Request): string | undefined;
}

/** All requests whose address nobody knows share one key. */
const UNKNOWN = 'unknown';

export class RequestReader<Request> {
  readonly #settings: Settings<Request>;
  readonly #reader: Reader<Request>;
  readonly #reporter: Reporter;
  /** Partitions the limit is known to have: no more than it has. */
  readonly #partitions = new Set<unknown>();

  constructor(settings: Settings<Request>, reader: Reader<Request>, reporter: Reporter) {
    this.#settings = settings;
    this.#reader = reader;
    this.#reporter = reporter;
  }

  isSkipped(request: Request): boolean {
    const { skip } = this.#settings;
    return skip !== undefined && this.#said('skip', skip, request, Boolean) === true;
  }

  keyOf(request: Request): string {
    const { key, header } = this.#settings;
    if (header !== undefined) {
      const value = this.#reader.header(request, header);
      // Named, so that nobody passes a header that looks like somebody else's address.
      return value ? `${header}=${value}` : this.#clientOf(request);
    }
    return (key && this.#said('key', key, request, readKey)) ?? this.#clientOf(request);
  }

  costOf(request: Request): number {
    const { cost } = this.#settings;
    return (cost && this.#said('cost', cost, request, readCost)) ?? 1;
  }

  partitionOf(request: Request): string | undefined {
    const { partition } = this.#settings;
    return partition && this.#said('partition', partition, request, (said) => this.#known(said));
  }

  /** What a function of the user's says, read; undefined where it fails or says nonsense. */
  #said<T>(
    name: string,
    say: (request: Request) => unknown,
    request: Request,
    read: (said: unknown) => T,
  ): T | undefined {
    try {
      return read(atOnce(name, say(request)));
    } catch (error) {
      this.#reporter.misread(error);
      return undefined;
    }
  }

  #clientOf(request: Request): string {
    const address = this.#addressOf(request);
    return address === undefined ? UNKNOWN : networkKey(address, this.#settings.ipv6Prefix);
  }

  #addressOf(request: Request): Address | undefined {
    const { clientOf } = this.#settings;
    try {
      if (!clientOf) return this.#told(request) ?? this.#ip(request) ?? this.#connection(request);
      const from = this.#told(request) ?? this.#connection(request);
      return clientOf(from, this.#reader.header(request, 'x-forwarded-for'));
    } catch (error) {
      this.#reporter.misread(error);
      return undefined;
    }
  }

  #told(request: Request): Address | undefined {
    const { address } = this.#settings;
    return address && this.#said('address', address, request, readAddress);
  }

  /** A framework that believes a proxy believes whatever the proxy was told: it may be no address. */
  #ip(request: Request): Address | undefined {
    return parsed(this.#reader.ip?.(request));
  }

  #connection(request: Request): Address | undefined {
    return parsed(this.#reader.address(request));
  }

  /** A limit is asked once whether it has a partition, by looking. It complains if not. */
  #known(said: unknown): string | undefined {
    if (said === undefined || said === null) return undefined;
    const partition = said as string;
    if (!this.#partitions.has(partition)) {
      const { limiter } = this.#settings;
      if (isRemote(limiter)) {
        throw new ConfigError('partition', 'left out: a shared limit has none', partition);
      }
      limiter.peek(UNKNOWN, 0, { partition });
      this.#partitions.add(partition);
    }
    return partition;
  }
}

const parsed = (text: string | undefined): Address | undefined =>
  text ? parseAddress(text) : undefined;

/** Ids are often numbers. Nothing, in whatever form, is no key: the address counts. */
function readKey(said: unknown): string | undefined {
  if (said === undefined || said === null || said === '') return undefined;
  if (typeof said === 'string') return said;
  if (typeof said === 'bigint' || Number.isFinite(said)) return String(said);
  throw new ConfigError('key', 'a text or a number', said);
}

function readCost(said: unknown): number {
  if (typeof said === 'number' && said >= 0) return said;
  throw new ConfigError('cost', 'a number of at least 0', said);
}

function readAddress(said: unknown): Address | undefined {
  if (said === undefined || said === null || said === '') return undefined;
  const address = typeof said === 'string' ? parseAddress(said) : undefined;
  if (address !== undefined) return address;
  throw new ConfigError('address', 'an address', said);
}
