/**
 * Leases of this process's calls in flight: each is renewed while its call runs.
 *
 * A lease has its own timer, set by the request that holds it. On Cloudflare Workers the timer ends with the request,
 * so the lease of a request that ended without settling is not renewed, and its slot is free within `leaseTimeout`.
 *
 * Invariant: leases are in the order in which they end, so leases of ended requests are first.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { type HeldLease, HeldLeases, loseLease, type SettledUnits } from '../held-leases.ts';
import { randomId } from '../remote-limit.ts';

interface TimedLease extends HeldLease {
  /** On this process's clock; not later than in the object. */
  endsAt: Millis;
  cancelTimer: (() => void) | undefined;
}

/** Renews a lease in its object; false: it has ended there. Rejects while the object is unavailable. */
type Renew = (key: string, leaseId: string) => Promise<boolean>;

export class RenewedLeases {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #leaseMs: Millis;
  readonly #renew: Renew;
  readonly #held = new HeldLeases<TimedLease>();
  /** Created with the first lease: a Worker has no random numbers before a request. */
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

  get(leaseId: string): TimedLease | undefined {
    return this.#held.get(leaseId);
  }

  /** Adds a lease that the object has just granted. */
  add(leaseId: string, key: string, cost: number, sentAt: Millis, token?: number): void {
    const endsAt = sentAt + this.#leaseMs;
    const lease = {
      key,
      cost,
      endsAt,
      fencingToken: token,
      onLost: undefined,
      isLost: false,
      cancelTimer: undefined,
    };
    this.#removeEnded();
    this.#held.add(leaseId, lease);
    this.#schedule(leaseId, lease);
  }

  /** Removes leases whose timer ended with their request. */
  #removeEnded(): void {
    const now = this.#clock.now();
    for (const [leaseId, lease] of this.#held.entries()) {
      if (lease.endsAt > now) return;
      this.#lose(leaseId, lease);
    }
  }

  /** Ends the call of a lease; no effect if it is not held. */
  remove(leaseId: string): readonly SettledUnits<TimedLease>[] {
    return withoutTimers(this.#held.remove(leaseId));
  }

  /** Ends calls of a key that have no permit, until `units` are settled. */
  removeUnits(key: string, units: number): readonly SettledUnits<TimedLease>[] {
    return withoutTimers(this.#held.removeUnits(key, units));
  }

  /** Ends all calls and tells their permits. */
  removeAll(): readonly SettledUnits<TimedLease>[] {
    const all = [...this.#held.entries()].flatMap(([leaseId]) => this.remove(leaseId));
    for (const { lease } of all) loseLease(lease);
    return all;
  }

  #schedule(leaseId: string, lease: TimedLease): void {
    const at = Math.min(lease.endsAt, this.#clock.now() + this.#leaseMs / 3);
    const onTimer = (): void => void this.#onTimer(leaseId, lease);
    lease.cancelTimer = schedule(this.#clock, at, onTimer, false);
  }

  async #onTimer(leaseId: string, lease: TimedLease): Promise<void> {
    const sentAt = this.#clock.now();
    try {
      if (await this.#renew(lease.key, leaseId)) lease.endsAt = sentAt + this.#leaseMs;
      else lease.endsAt = -Infinity;
    } catch {} // the next renewal may succeed, or the lease ends
    if (this.#held.get(leaseId) !== lease) return;
    if (this.#clock.now() >= lease.endsAt) return this.#lose(leaseId, lease);
    this.#held.moveToEnd(leaseId, lease);
    this.#schedule(leaseId, lease);
  }

  #lose(leaseId: string, lease: TimedLease): void {
    this.#held.remove(leaseId);
    loseLease(lease);
  }
}

/** Cancels the renewal of leases that have no units left. */
function withoutTimers(
  settled: readonly SettledUnits<TimedLease>[],
): readonly SettledUnits<TimedLease>[] {
  for (const { lease } of settled) if (lease.cost === 0) lease.cancelTimer?.();
  return settled;
}
