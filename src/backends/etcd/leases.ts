/**
 * Cache of etcd leases: registers of idle keys expire with the lease under which they were written.
 *
 * A register may expire when it is removable, not earlier. A lease lasts at least its TTL from its request on. A lease
 * with twice the lifetime of a register serves many registers for that lifetime. So there is at most one lease request
 * every 30 s, for any number of keys, and no lease is renewed.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import type { RttEstimator } from '../rtt-estimator.ts';
import type { RegisterStore } from './store.ts';

export interface Lease {
  readonly id: string;
  /** The earliest end, on the local clock. */
  readonly endsAt: Millis;
}

const MIN_TTL_SECONDS = 64;
/** The largest power of two that etcd accepts: 272 years. */
const MAX_TTL_SECONDS = 2 ** 33;

export class LeaseCache {
  readonly #store: Pick<RegisterStore, 'grantLease'>;
  readonly #clock: Clock;
  /** Leases by TTL: powers of two, or a TTL of the caller, so there are few. */
  readonly #leases = new Map<number, Lease>();
  /** Requests in flight by TTL; concurrent callers share them. */
  readonly #requests = new Map<number, Promise<void>>();
  readonly #rtt: RttEstimator;

  constructor(store: Pick<RegisterStore, 'grantLease'>, clock: Clock, rtt: RttEstimator) {
    this.#store = store;
    this.#clock = clock;
    this.#rtt = rtt;
  }

  /** Returns a cached lease that lasts until `at`. */
  findValidUntil(at: Millis, seconds = this.#secondsUntil(at)): Lease | undefined {
    const lease = this.#leases.get(seconds);
    return lease && (lease.endsAt >= at || seconds === MAX_TTL_SECONDS) ? lease : undefined;
  }

  async request(at: Millis, seconds = this.#secondsUntil(at)): Promise<void> {
    const request = this.#requests.get(seconds) ?? this.#grant(seconds);
    this.#requests.set(seconds, request);
    await request.finally(() => this.#requests.delete(seconds));
  }

  /** Clears the cache after a failed swap: a lease may have been revoked, or the server replaced. */
  clear(): void {
    this.#leases.clear();
  }

  #secondsUntil(at: Millis): number {
    return ttlSecondsFor(at - this.#clock.now());
  }

  async #grant(seconds: number): Promise<void> {
    const sentAt = this.#clock.now();
    const id = await this.#store.grantLease(seconds);
    // A lease is also written by quorum: its time is a first estimate before the first permit needs one.
    this.#rtt.observe(this.#clock.now() - sentAt);
    this.#leases.set(seconds, { id, endsAt: sentAt + seconds * 1000 * (1 - CLOCK_DRIFT_RATE) });
  }
}

function ttlSecondsFor(ms: Millis): number {
  let seconds = MIN_TTL_SECONDS;
  while (seconds * 500 < ms && seconds < MAX_TTL_SECONDS) seconds *= 2;
  return seconds;
}
