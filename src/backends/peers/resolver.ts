import { isIP } from 'node:net';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { type Address, formatHostPort } from './address.ts';
import { MAX_PEERS } from './messages.ts';

/** A name that failed to resolve is retried after this time, and keeps its previous addresses. */
export const RESOLVE_RETRY_MS: Millis = 1000;

interface ResolverConfig {
  readonly clock: Clock;
  readonly refreshMs: Millis;
  resolve(name: string): Promise<readonly string[]>;
  /** Called once for a name that has never resolved. */
  onUnresolved(name: string, reason: string): void;
  /** False once the transport is closed. */
  isOpen(): boolean;
  /** True for the node's own address, to which it does not send. */
  isSelf(address: Address): boolean;
}

export function createResolver(peers: readonly Address[], config: ResolverConfig) {
  const { clock, refreshMs } = config;
  const names = peers.filter(({ host }) => isIP(host) === 0);
  const resolved = new Map<Address, readonly Address[]>();
  const unresolved = new Set<string>();
  let addresses: readonly Address[] = [];
  let cancelRefresh = (): void => {};

  const resolveName = async (name: Address): Promise<boolean> => {
    const { host, port } = name;
    try {
      const hosts = await config.resolve(host);
      resolved.set(
        name,
        hosts.map((host) => ({ host, port })),
      );
      if (hosts.length > 0) return true;
      throw new Error('the name has no address');
    } catch (error) {
      // A name that resolved before keeps its addresses; a name that never did may be misspelt.
      const isKnown = (resolved.get(name) ?? []).length > 0;
      if (!isKnown && !unresolved.has(host)) config.onUnresolved(host, errorMessageOf(error));
      if (!isKnown) unresolved.add(host);
      return false;
    }
  };

  const reachableAddresses = (): readonly Address[] => {
    const all = new Map<string, Address>();
    for (const peer of peers) {
      for (const address of resolved.get(peer) ?? (isIP(peer.host) ? [peer] : [])) {
        if (all.size < MAX_PEERS && !config.isSelf(address))
          all.set(formatHostPort(address), address);
      }
    }
    return [...all.values()];
  };

  /** Resolves all names and schedules the next refresh. */
  const refresh = async (): Promise<void> => {
    const results = await Promise.all(names.map(resolveName));
    if (!config.isOpen()) return;
    addresses = reachableAddresses();
    if (names.length === 0) return;
    const afterMs = results.includes(false) ? RESOLVE_RETRY_MS : refreshMs;
    cancelRefresh = schedule(clock, clock.now() + afterMs, () => void refresh(), false);
  };

  return {
    /** Result of the last refresh. */
    get addresses() {
      return addresses;
    },
    refresh,
    close: () => cancelRefresh(),
  };
}
