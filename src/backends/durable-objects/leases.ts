/**
 * Leases of the calls in flight of this process: each is renewed while its call runs.
 *
 * A lease has its own timer, set by the request that holds it. On Cloudflare Workers the timer ends with the request, so
 * the lease of a request that ended without settling is not renewed, and its place is free within `leaseTimeout`.
 *
 * Invariant: leases are in the order in which they end, so that those of requests that ended are first.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { RemoteLease } from '../remote-backend.ts';
import { randomId } from '../remote-limit.ts';

interface HeldLease extends RemoteLease {
  readonly key: string;
  /** Units in flight: some of them may be settled before the others. */
  cost: number;
  /** On the clock of this process, not later than in the object. */
  endsAt: Millis;
  cancelTimer: (() => void) | undefined;
}

/** Units that a settlement took off a lease. */
interface SettledUnits {
  readonly leaseId: string;
  readonly units: number;
  /** Units of the lease that stay in flight. */
  readonly left: number;
  readonly endsAt: Millis;
}

/** Renews a lease in its object; false: it has ended there. Rejects while the object is unavailable. */
type Renew = (key: string, leaseId: string) => Promise<boolean>;

export class HeldLeases {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #leaseMs: Millis;
  readonly #renew: Renew;
  readonly #leases = new Map<string, HeldLease>();
  /** Drawn with the first lease: a Worker has no randomness before a request. */
  #processId: string | undefined;
  #lastNumber = 0;

  constructor(clock: Clock, random: Random, leaseMs: Millis, renew: Renew) {
    this.#clock = clock;
    this.#random = random;
    this.#leaseMs = leaseMs;
    this.#renew = renew;
  }

  newId(): string {
    this.#processId ??= randomId(this.#random);
    return `${this.#processId}/${++this.#lastNumber}`;
  }

  get(leaseId: string): HeldLease | undefined {
    return this.#leases.get(leaseId);
  }

  /** Settles units of calls without a permit, those whose lease ends first before the others. */
  settleUnits(key: string, units: number): readonly SettledUnits[] {
    const settled: SettledUnits[] = [];
    let open = units;
    for (const [leaseId, lease] of this.#leases) {
      if (open <= 0) break;
      if (lease.key !== key || lease.onLost) continue; // a permit ends its own lease
      const taken = Math.min(open, lease.cost);
      open -= taken;
      lease.cost -= taken;
      settled.push({ leaseId, units: taken, left: lease.cost, endsAt: lease.endsAt });
      if (lease.cost === 0) this.remove(leaseId);
    }
    return settled;
  }

  /** The lease that the object has just granted. */
  add(leaseId: string, key: string, cost: number, sentAt: Millis, token?: number): void {
    const endsAt = sentAt + this.#leaseMs;
    const lease = {
      key,
      cost,
      endsAt,
      fencingToken: token,
      onLost: undefined,
      cancelTimer: undefined,
    };
    this.#removeEnded();
    this.#leases.set(leaseId, lease);
    this.#schedule(leaseId, lease);
  }

  /** Those whose timer ended with their request. */
  #removeEnded(): void {
    const now = this.#clock.now();
    for (const [leaseId, lease] of this.#leases) {
      if (lease.endsAt > now) return;
      this.#lose(leaseId, lease);
    }
  }

  /** Returns it if it was held. */
  remove(leaseId: string): HeldLease | undefined {
    const lease = this.#leases.get(leaseId);
    lease?.cancelTimer?.();
    this.#leases.delete(leaseId);
    return lease;
  }

  /** Removes and returns all. */
  removeAll(): [string, HeldLease][] {
    const all = [...this.#leases];
    for (const [leaseId] of all) this.remove(leaseId);
    return all;
  }

  #schedule(leaseId: string, lease: HeldLease): void {
    const at = Math.min(lease.endsAt, this.#clock.now() + this.#leaseMs / 3);
    const onTimer = (): void => void this.#onTimer(leaseId, lease);
    lease.cancelTimer = schedule(this.#clock, at, onTimer, false);
  }

  async #onTimer(leaseId: string, lease: HeldLease): Promise<void> {
    const sentAt = this.#clock.now();
    try {
      if (await this.#renew(lease.key, leaseId)) lease.endsAt = sentAt + this.#leaseMs;
      else lease.endsAt = -Infinity;
    } catch {} // the next renewal may succeed, or the lease ends
    if (this.#leases.get(leaseId) !== lease) return;
    if (this.#clock.now() >= lease.endsAt) return this.#lose(leaseId, lease);
    this.#leases.delete(leaseId);
    this.#leases.set(leaseId, lease);
    this.#schedule(leaseId, lease);
  }

  #lose(leaseId: string, lease: HeldLease): void {
    this.#leases.delete(leaseId);
    lease.onLost?.();
  }
}
