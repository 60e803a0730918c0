/**
 * Entries under leases in memory, as etcd has them, behind a faulty network on virtual time. Leases end a little late, as those
 * of etcd do, and never early. A process can be frozen: it then receives nothing and its timers do not fire.
 */

import {
  type EntryRenewal,
  type EntrySet,
  type EntryStore,
  type EntrySwap,
  NO_REVISION,
  type StoredEntry,
} from '../../src/backends/etcd/store.ts';
import { type Clock, type Millis, schedule } from '../../src/core/clock.ts';
import type { Random } from '../../src/core/random.ts';
import type { VirtualClock } from '../../src/testing/virtual-clock.ts';
import { FaultyNetwork, type NetworkFaults } from './faulty-registers.ts';

/** How much later than it says a lease ends, at most. */
const MAX_LATE_MS: Millis = 800;

interface LeasedEntry extends StoredEntry {
  readonly leaseId: string;
}

/** A process that may be frozen, or has died. */
export class FreezableProcess {
  readonly #world: VirtualClock;
  #resumesAt: Millis = -Infinity;

  constructor(world: VirtualClock) {
    this.#world = world;
  }

  get isFrozen(): boolean {
    return this.#world.now() < this.#resumesAt;
  }

  /** Infinity: it has died. */
  freeze(ms: Millis): void {
    this.#resumesAt = this.#world.now() + ms;
  }

  /** Runs it now, or when the process is resumed. */
  readonly run = (callback: () => void): void => {
    if (!this.isFrozen) callback();
    else if (this.#resumesAt < Infinity)
      this.#world.wakeAt(this.#resumesAt, () => this.run(callback));
  };

  /** Its timers fire when it runs. */
  clock(inner: Clock): Clock {
    return {
      now: () => inner.now(),
      wakeAt: (at, callback, keepAlive) => schedule(inner, at, () => this.run(callback), keepAlive),
    };
  }
}

export class FaultyEntries {
  readonly #world: VirtualClock;
  readonly #random: Random;
  readonly network: FaultyNetwork;
  readonly #entries = new Map<string, LeasedEntry>();
  /** When each lease ends. */
  readonly #leases = new Map<string, Millis>();
  #revision = 1;

  constructor(world: VirtualClock, random: Random, faults: NetworkFaults) {
    this.#world = world;
    this.#random = random;
    this.network = new FaultyNetwork(world, random, faults);
  }

  /** Units of all entries. */
  get units(): number {
    this.#expire();
    return [...this.#entries.values()].reduce((sum, { text }) => sum + Number(text), 0);
  }

  server(deadlineMs: Millis, process: FreezableProcess): EntryStore {
    const call = <T>(execute: () => T): Promise<T> =>
      this.network.roundTrip(
        deadlineMs,
        () => {
          this.#expire();
          return execute();
        },
        process.run,
      );
    return {
      readEntries: (prefix) => call(() => this.#read(prefix)),
      swapEntry: (swap) => call(() => this.#swap(swap)),
      renewEntries: (entries, leaseId) => call(() => this.#renew(entries, leaseId)),
      grantLease: (seconds) => call(() => this.#grantLease(seconds)),
      close() {},
    };
  }

  #read(prefix: string): EntrySet {
    const entries = [...this.#entries.values()].filter(({ key }) => key.startsWith(prefix));
    return { revision: String(this.#revision), entries };
  }

  #swap({ prefix, key, revision, replacement, unchangedSince }: EntrySwap) {
    const isSame = (this.#entries.get(key)?.revision ?? NO_REVISION) === revision;
    const isNewer = (entry: StoredEntry): boolean =>
      unchangedSince !== undefined && Number(entry.revision) > Number(unchangedSince);
    const isMatch = isSame && !this.#read(prefix).entries.some(isNewer);
    if (isMatch && replacement) {
      const { text, leaseId } = replacement;
      if (!this.#leases.has(leaseId)) throw new Error('requested lease not found');
      this.#entries.set(key, { key, text, leaseId, revision: String(++this.#revision) });
    } else if (isMatch) {
      this.#entries.delete(key);
      this.#revision++;
    }
    return { isMatch, ...this.#read(prefix) };
  }

  #renew(entries: readonly EntryRenewal[], leaseId: string): string | undefined {
    if (entries.some(({ key, revision }) => this.#entries.get(key)?.revision !== revision))
      return undefined;
    if (!this.#leases.has(leaseId)) throw new Error('requested lease not found');
    const revision = String(++this.#revision);
    for (const { key, text } of entries) this.#entries.set(key, { key, text, leaseId, revision });
    return revision;
  }

  #grantLease(seconds: number): string {
    const id = `lease ${this.#leases.size} ${this.#random()}`;
    this.#leases.set(id, this.#world.now() + seconds * 1000 + this.#random() * MAX_LATE_MS);
    return id;
  }

  #expire(): void {
    for (const [id, endsAt] of this.#leases) {
      if (endsAt > this.#world.now()) continue;
      this.#leases.delete(id);
      for (const [key, { leaseId }] of this.#entries) {
        if (leaseId !== id) continue;
        this.#entries.delete(key);
        this.#revision++;
      }
    }
  }
}
