/** Resolves a list of peers to addresses: IP addresses as they are, names by DNS, refreshed periodically. */

import { isIP } from 'node:net';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { type Address, formatHostPort } from './address.ts';
import { MAX_PEERS } from './messages.ts';

/** A name that failed to resolve is retried after this, and keeps its previous addresses. */
export const RESOLVE_RETRY_MS: Millis = 1000;

interface AddressResolverConfig {
  readonly clock: Clock;
  readonly refreshMs: Millis;
  resolve(name: string): Promise<readonly string[]>;
  /** Called once for a name that never resolved. */
  onUnresolved(name: string, reason: string): void;
  /** False once the transport is closed. */
  isOpen(): boolean;
  /** The node does not send to itself. */
  isSelf(address: Address): boolean;
}

export class AddressResolver {
  readonly #peers: readonly Address[];
  readonly #config: AddressResolverConfig;
  readonly #names: readonly Address[];
  readonly #resolved = new Map<Address, readonly Address[]>();
  readonly #unresolved = new Set<string>();
  #cancelRefresh = (): void => {};
  /** Result of the last refresh. */
  addresses: readonly Address[] = [];

  constructor(peers: readonly Address[], config: AddressResolverConfig) {
    this.#peers = peers;
    this.#config = config;
    this.#names = peers.filter(({ host }) => isIP(host) === 0);
  }

  /** Resolves all names, and schedules the next refresh. */
  async refresh(): Promise<void> {
    const results = await Promise.all(this.#names.map((name) => this.#resolveName(name)));
    if (!this.#config.isOpen()) return;
    this.#updateAddresses();
    if (this.#names.length === 0) return;
    const { clock, refreshMs } = this.#config;
    const afterMs = results.includes(false) ? RESOLVE_RETRY_MS : refreshMs;
    this.#cancelRefresh = schedule(clock, clock.now() + afterMs, () => void this.refresh(), false);
  }

  close(): void {
    this.#cancelRefresh();
  }

  async #resolveName(name: Address): Promise<boolean> {
    const { host, port } = name;
    try {
      const hosts = await this.#config.resolve(host);
      const addresses = hosts.map((resolved) => ({ host: resolved, port }));
      this.#resolved.set(name, addresses);
      if (hosts.length > 0) return true;
      throw new Error('the name has no address');
    } catch (error) {
      // A name that resolved before keeps its addresses; one that never did may be misspelt.
      const isKnown = (this.#resolved.get(name) ?? []).length > 0;
      if (!isKnown && !this.#unresolved.has(host))
        this.#config.onUnresolved(host, errorMessageOf(error));
      if (!isKnown) this.#unresolved.add(host);
      return false;
    }
  }

  #updateAddresses(): void {
    const all = new Map<string, Address>();
    for (const peer of this.#peers) {
      for (const address of this.#resolved.get(peer) ?? (isIP(peer.host) ? [peer] : [])) {
        if (all.size < MAX_PEERS && !this.#config.isSelf(address))
          all.set(formatHostPort(address), address);
      }
    }
    this.addresses = [...all.values()];
  }
}
