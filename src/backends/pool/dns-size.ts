/**
 * A pool without a store: as many as a DNS name has addresses, as a headless service of Kubernetes does.
 *
 *     pool(dnsPool('pods.internal'))
 *
 * The name is looked up every five seconds. Whoever finds an address of its own among them, sorted, has that place
 * as its rank; else (behind a translated address) it has its even part only. A look-up that fails counts as a sync that
 * failed: what was found last is used for as long as the pool holds on to it (`hold`, `onUnavailable`).
 *
 * Nobody agrees: the members hear of a newcomer at different times, up to a look-up and the time DNS keeps an answer
 * apart, and until then their parts may add up to more than the limit.
 */

import { lookup } from 'node:dns/promises';
import { networkInterfaces } from 'node:os';
import { type Clock, isClock, type Millis, systemClock } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, UnavailableError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { staticStore } from './static-size.ts';
import type { PoolStore } from './store.ts';

/** How often a name is looked up, and which of its addresses count. */
export interface DnsPoolOptions {
  /** How long a look-up counts. Default 5 s. */
  readonly every?: Duration;
  /** How long one may take. Default 2 s. */
  readonly deadline?: Duration;
  /** Which addresses count: a pod may have one of each. Default 4. */
  readonly family?: 4 | 6;
  readonly clock?: Clock;
  /** In place of the system's: all addresses of a name, and all of this machine. */
  readonly lookup?: AddressLookup;
  readonly localAddresses?: LocalAddresses;
}

type AddressLookup = (name: string, family: 4 | 6) => Promise<readonly string[]>;
type LocalAddresses = () => readonly string[];

/** @throws {ConfigError} if the options make no sense. */
export function dnsPool(host: string, options: DnsPoolOptions = {}): PoolStore {
  if (typeof host !== 'string' || host === '') throw new ConfigError('host', 'a name', host);
  const fields = OptionReader.collecting('', options);
  const everyMs = fields.duration('every', 5000);
  const deadlineMs = fields.duration('deadline', 2000);
  const family = fields.optional('family', isFamily, '4 or 6') ?? 4;
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const look =
    fields.optional('lookup', isFunction<AddressLookup>, 'a function') ?? resolveAddresses;
  const own =
    fields.optional('localAddresses', isFunction<LocalAddresses>, 'a function') ??
    interfaceAddresses;
  fields.finish();

  let found = { size: 0, rank: -1, round: 0 };
  let foundAt: Millis = -Infinity;
  let looking: Promise<void> | undefined;
  return staticStore(`dns ${host}`, clock, async () => {
    if (clock.now() - foundAt >= everyMs) {
      await withDeadline(clock, deadlineMs, `dns ${host}`, find);
    }
    return found;
  });

  /** One look-up at a time: the system's has no deadline. */
  function find(): Promise<void> {
    looking ??= findNow().finally(() => {
      looking = undefined;
    });
    return looking;
  }

  async function findNow(): Promise<void> {
    const addresses = [...new Set<string>(await look(host, family))].sort();
    if (addresses.length === 0) throw new UnavailableError(host, 'it has no addresses');
    const mine = new Set<string>(own());
    const rank = addresses.findIndex((address) => mine.has(address));
    found = { size: addresses.length, rank, round: 0 };
    foundAt = clock.now();
  }
}

const resolveAddresses = async (name: string, family: 4 | 6): Promise<string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

const interfaceAddresses = (): string[] =>
  Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address));

const isFamily = (value: unknown): value is 4 | 6 => value === 4 || value === 6;

const isFunction = <T>(value: unknown): value is T => typeof value === 'function';
