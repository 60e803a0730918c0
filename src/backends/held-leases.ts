/**
 * This process's calls in flight, one lease each, where a server counts the calls of all processes.
 *
 * A permit's lease ends by its id. A lease of a call without a permit (`check`, `takeUpTo`) ends by its key and a
 * number of units. Neither settlement ends a lease of the other kind.
 */

import type { RemoteLease } from './remote-backend.ts';

export interface HeldLease extends RemoteLease {
  readonly key: string;
  /** Units in flight; some may be settled before the others. */
  cost: number;
  isLost: boolean;
}

/** Units of a lease that a settlement ended. */
export interface SettledUnits<Lease> {
  readonly id: string;
  readonly lease: Lease;
  readonly units: number;
}

/** The leases of one key, oldest first. */
interface KeyLeases<Lease> {
  readonly leases: Map<string, Lease>;
  units: number;
}

export class HeldLeases<Lease extends HeldLease> {
  readonly #byId = new Map<string, Lease>();
  readonly #byKey = new Map<string, KeyLeases<Lease>>();

  get size(): number {
    return this.#byId.size;
  }

  add(id: string, lease: Lease): void {
    const { key, cost } = lease;
    this.#byId.set(id, lease);
    const ofKey = this.#byKey.get(key) ?? { leases: new Map(), units: 0 };
    ofKey.leases.set(id, lease);
    ofKey.units += cost;
    this.#byKey.set(key, ofKey);
  }

  get(id: string): Lease | undefined {
    return this.#byId.get(id);
  }

  entries(): IterableIterator<[string, Lease]> {
    return this.#byId.entries();
  }

  unitsOf(key: string): number {
    return this.#byKey.get(key)?.units ?? 0;
  }

  /** Moves a lease to the end of `entries`. */
  moveToEnd(id: string, lease: Lease): void {
    this.#byId.delete(id);
    this.#byId.set(id, lease);
  }

  /** Ends the call of a lease, if the lease is known. */
  remove(id: string): readonly SettledUnits<Lease>[] {
    const lease = this.#byId.get(id);
    if (!lease) return [];
    const units = lease.cost;
    this.#settle(id, lease, units);
    return [{ id, lease, units }];
  }

  /** Ends calls of a key that have no permit, oldest first, until `units` are settled. */
  removeUnits(key: string, units: number): readonly SettledUnits<Lease>[] {
    const settled: SettledUnits<Lease>[] = [];
    let left = units;
    for (const [id, lease] of this.#byKey.get(key)?.leases ?? []) {
      if (left <= 0) break;
      if (lease.onLost) continue; // belongs to a permit
      const taken = Math.min(left, lease.cost);
      left -= taken;
      settled.push({ id, lease, units: taken });
    }
    for (const { id, lease, units: taken } of settled) this.#settle(id, lease, taken);
    return settled;
  }

  /** Tells the permits of a key that their leases have ended. Their calls stay in flight. */
  lose(key: string): void {
    for (const lease of this.#byKey.get(key)?.leases.values() ?? []) loseLease(lease);
  }

  /** Ends all calls and tells their permits. */
  clear(): void {
    for (const key of this.#byKey.keys()) this.lose(key);
    this.#byId.clear();
    this.#byKey.clear();
  }

  #settle(id: string, lease: Lease, units: number): void {
    const { key } = lease;
    const ofKey = this.#byKey.get(key);
    lease.cost -= units;
    if (ofKey) ofKey.units -= units;
    if (lease.cost > 0) return;
    this.#byId.delete(id);
    ofKey?.leases.delete(id);
    if (ofKey?.leases.size === 0) this.#byKey.delete(key);
  }
}

/** Tells the permit of a lease, once, that the lease has ended. */
export function loseLease(lease: HeldLease): void {
  if (lease.isLost) return;
  lease.isLost = true;
  lease.onLost?.();
}
