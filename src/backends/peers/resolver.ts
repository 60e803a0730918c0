/**
 * Whom a list of peers stands for: addresses as they are, and names as all they resolve to, looked up again and again.
 */

import { isIP } from 'node:net';
import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { reasonOf } from '../../core/errors.ts';
import { type Address, textOf } from './address.ts';

/** Addresses a node sends to at most; those beyond are not sent to. */
export const ADDRESSES_MAX = 4096;

/** A name that could not be looked up is tried again so soon, and keeps the addresses it had. */
export const RESOLVE_AGAIN_MS: Millis = 1000;

export interface ReachSetting {
  readonly clock: Clock;
  /** How often names are looked up again. */
  readonly everyMs: Millis;
  /** All addresses of a name. */
  resolve(name: string): Promise<readonly string[]>;
  /** Hears of a name that was never found, once. */
  onMissing(name: string, reason: string): void;
  /** False once nobody wants to know any more. */
  isOpen(): boolean;
  /** Nobody speaks to itself. */
  isOwn(address: Address): boolean;
}

export class Reach {
  readonly #peers: readonly Address[];
  readonly #setting: ReachSetting;
  readonly #names: readonly Address[];
  readonly #found = new Map<Address, readonly Address[]>();
  readonly #missing = new Set<string>();
  #cancel = (): void => {};
  /** Everybody, as of the last look. */
  addresses: readonly Address[] = [];

  constructor(peers: readonly Address[], setting: ReachSetting) {
    this.#peers = peers;
    this.#setting = setting;
    this.#names = peers.filter(({ host }) => isIP(host) === 0);
  }

  /** Looks for the first time, and from then on as often as it should. */
  async look(): Promise<void> {
    const areFound = await Promise.all(this.#names.map((name) => this.#find(name)));
    if (!this.#setting.isOpen()) return;
    this.#gather();
    if (this.#names.length === 0) return;
    const { clock, everyMs } = this.#setting;
    const afterMs = areFound.includes(false) ? RESOLVE_AGAIN_MS : everyMs;
    this.#cancel = alarm(clock, clock.now() + afterMs, () => void this.look(), false);
  }

  close(): void {
    this.#cancel();
  }

  async #find(name: Address): Promise<boolean> {
    const { host, port } = name;
    try {
      const hosts = await this.#setting.resolve(host);
      this.#found.set(
        name,
        hosts.map((own) => ({ host: own, port })),
      );
      if (hosts.length > 0) return true;
      throw new Error('it has no address');
    } catch (error) {
      // One that was known goes on as it was; one that never was may be misspelt.
      const isKnown = (this.#found.get(name) ?? []).length > 0;
      if (!isKnown && !this.#missing.has(host)) this.#setting.onMissing(host, reasonOf(error));
      if (!isKnown) this.#missing.add(host);
      return false;
    }
  }

  #gather(): void {
    const all = new Map<string, Address>();
    for (const peer of this.#peers) {
      for (const own of this.#found.get(peer) ?? (isIP(peer.host) ? [peer] : [])) {
        if (all.size < ADDRESSES_MAX && !this.#setting.isOwn(own)) all.set(textOf(own), own);
      }
    }
    this.addresses = [...all.values()];
  }
}
