/**
 * Whom a list of peers stands for: addresses as they are, and names as all they resolve to, looked up again and again.
 */

import { isIP } from 'node:net';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { type Address, formatHostPort } from './address.ts';

/** Addresses a node sends to at most; those beyond are not sent to. */
export const MAX_ADDRESSES = 4096;

/** A name that could not be looked up is tried again so soon, and keeps the addresses it had. */
export const RESOLVE_RETRY_MS: Millis = 1000;

export interface AddressResolverConfig {
  readonly clock: Clock;
  /** How often names are looked up again. */
  readonly refreshMs: Millis;
  /** All addresses of a name. */
  resolve(name: string): Promise<readonly string[]>;
  /** Hears of a name that was never found, once. */
  onUnresolved(name: string, reason: string): void;
  /** False once nobody wants to know any more. */
  isOpen(): boolean;
  /** Nobody speaks to itself. */
  isSelf(address: Address): boolean;
}

export class AddressResolver {
  readonly #peers: readonly Address[];
  readonly #config: AddressResolverConfig;
  readonly #names: readonly Address[];
  readonly #resolved = new Map<Address, readonly Address[]>();
  readonly #unresolved = new Set<string>();
  #cancelRefresh = (): void => {};
  /** Everybody, as of the last look. */
  addresses: readonly Address[] = [];

  constructor(peers: readonly Address[], config: AddressResolverConfig) {
    this.#peers = peers;
    this.#config = config;
    this.#names = peers.filter(({ host }) => isIP(host) === 0);
  }

  /** Looks for the first time, and from then on as often as it should. */
  async refresh(): Promise<void> {
    const areFound = await Promise.all(this.#names.map((name) => this.#resolveName(name)));
    if (!this.#config.isOpen()) return;
    this.#updateAddresses();
    if (this.#names.length === 0) return;
    const { clock, refreshMs } = this.#config;
    const afterMs = areFound.includes(false) ? RESOLVE_RETRY_MS : refreshMs;
    this.#cancelRefresh = schedule(clock, clock.now() + afterMs, () => void this.refresh(), false);
  }

  close(): void {
    this.#cancelRefresh();
  }

  async #resolveName(name: Address): Promise<boolean> {
    const { host, port } = name;
    try {
      const hosts = await this.#config.resolve(host);
      this.#resolved.set(
        name,
        hosts.map((own) => ({ host: own, port })),
      );
      if (hosts.length > 0) return true;
      throw new Error('it has no address');
    } catch (error) {
      // One that was known goes on as it was; one that never was may be misspelt.
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
      for (const own of this.#resolved.get(peer) ?? (isIP(peer.host) ? [peer] : [])) {
        if (all.size < MAX_ADDRESSES && !this.#config.isSelf(own))
          all.set(formatHostPort(own), own);
      }
    }
    this.addresses = [...all.values()];
  }
}
