/**
 * The calls in flight of this process, where a server counts those of all processes: a lease for each.
 *
 * A lease belongs to a permit, which ends it by its id, or to a call without one (`check`, `takeUpTo`), which is settled by
 * its key and a number of units. The two never end each other.
 */

import type { RemoteLease } from './remote-backend.ts';

export interface HeldLease extends RemoteLease {
  readonly key: string;
  /** Units in flight: some of them may be settled before the others. */
  cost: number;
  isLost: boolean;
}

/** Units that a settlement took off a lease. */
export interface SettledUnits<Lease> {
  readonly id: string;
  readonly lease: Lease;
  readonly units: number;
}

/** The leases of one key, the oldest first. */
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

  /** Makes a lease the last of `entries`, as if it had just been added. */
  moveToEnd(id: string, lease: Lease): void {
    this.#byId.delete(id);
    this.#byId.set(id, lease);
  }

  /** Ends the call of a lease, if it is known. */
  remove(id: string): readonly SettledUnits<Lease>[] {
    const lease = this.#byId.get(id);
    if (!lease) return [];
    const units = lease.cost;
    this.#settle(id, lease, units);
    return [{ id, lease, units }];
  }

  /** Ends calls of a key that have no permit, the oldest first, until so many units are settled. */
  removeUnits(key: string, units: number): readonly SettledUnits<Lease>[] {
    const settled: SettledUnits<Lease>[] = [];
    let left = units;
    for (const [id, lease] of this.#byKey.get(key)?.leases ?? []) {
      if (left <= 0) break;
      if (lease.onLost) continue; // of a permit
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

  /** Ends all calls, and tells their permits. */
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
