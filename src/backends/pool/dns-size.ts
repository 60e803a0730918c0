/**
 * Pool size from DNS, without a store: the number of addresses of a name (a headless Kubernetes service).
 *
 *     pool(dnsPool('pods.internal'))
 *
 * The name is looked up every 5 s. A process that finds one of its own addresses in the sorted list uses that index as
 * its rank; otherwise (behind NAT) it has only its even part. A failed look-up counts as a failed sync: the last size
 * is used for `staleFor`, then `onUnavailable` decides.
 *
 * There is no agreement: members learn of a new member at different times, up to one look-up and the DNS TTL apart.
 * Until then their parts may add up to more than the limit (overshoot).
 */

import { lookup } from 'node:dns/promises';
import { networkInterfaces } from 'node:os';
import { type Clock, isClock, type Millis, systemClock } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, UnavailableError } from '../../core/errors.ts';
import { isFunction, OptionReader } from '../../core/options.ts';
import { staticStore } from './static-size.ts';
import type { PoolStore } from './store.ts';

/** Options of `dnsPool`. */
export interface DnsPoolOptions {
  /** Interval between look-ups. Default 5 s. */
  readonly every?: Duration | undefined;
  /** Deadline of a look-up. Default 2 s. */
  readonly deadline?: Duration | undefined;
  /** The address family that counts, because a pod may have both. Default 4. */
  readonly family?: 4 | 6 | undefined;
  readonly clock?: Clock | undefined;
  /** Replaces the system's look-up and interface list. */
  readonly lookup?: AddressLookup | undefined;
  readonly localAddresses?: LocalAddresses | undefined;
}

type AddressLookup = (name: string, family: 4 | 6) => Promise<readonly string[]>;
type LocalAddresses = () => readonly string[];

/** Creates a store that reads the pool size from DNS. @throws {ConfigError} if an option is invalid. */
export function dnsPool(host: string, options: DnsPoolOptions = {}): PoolStore {
  if (typeof host !== 'string' || host === '') throw new ConfigError('host', 'a name', host);
  const reader = OptionReader.collecting('', options);
  const everyMs = reader.duration('every', 5000);
  const deadlineMs = reader.duration('deadline', 2000);
  const family = reader.optional('family', isFamily, '4 or 6') ?? 4;
  const clock = reader.optional('clock', isClock, 'a clock') ?? systemClock;
  const lookUp =
    reader.optional('lookup', isFunction<AddressLookup>, 'a function') ?? resolveAddresses;
  const localAddresses =
    reader.optional('localAddresses', isFunction<LocalAddresses>, 'a function') ??
    interfaceAddresses;
  reader.finish();

  let found = { size: 0, rank: -1, round: 0 };
  let foundAt: Millis = -Infinity;
  let looking: Promise<void> | undefined;
  return staticStore(`dns ${host}`, clock, async () => {
    if (clock.now() - foundAt >= everyMs) {
      await withDeadline(clock, deadlineMs, `dns ${host}`, find);
    }
    return found;
  });

  /** Runs one look-up at a time: a system look-up cannot be cancelled. */
  function find(): Promise<void> {
    looking ??= findNow().finally(() => {
      looking = undefined;
    });
    return looking;
  }

  async function findNow(): Promise<void> {
    const addresses = [...new Set<string>(await lookUp(host, family))].sort();
    if (addresses.length === 0) throw new UnavailableError(host, 'it has no addresses');
    const local = new Set<string>(localAddresses());
    const rank = addresses.findIndex((address) => local.has(address));
    found = { size: addresses.length, rank, round: 0 };
    foundAt = clock.now();
  }
}

const resolveAddresses = async (name: string, family: 4 | 6): Promise<string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

const interfaceAddresses = (): string[] =>
  Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address));

const isFamily = (value: unknown): value is 4 | 6 => value === 4 || value === 6;
