/**
 * Leases that registers go with, so that keys nobody uses any more disappear.
 *
 * A register may go when it is as good as new, and no sooner. A lease ends no sooner than its time after it was asked
 * for; one that lasts twice as long as a register matters serves many of them for as long again. So there is one request
 * for a lease every half minute at most, however many keys there are, and none is ever renewed.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { CLOCK_DRIFT_RATE } from '../../core/clock-offset.ts';
import type { RttEstimator } from './rtt-estimator.ts';
import type { RegisterStore } from './store.ts';

interface Lease {
  readonly id: string;
  /** No sooner than this, on our clock. */
  readonly endsAt: Millis;
}

const MIN_TTL_SECONDS = 64;
/** As long as etcd lets a lease be, in powers of two: 272 years. */
const MAX_TTL_SECONDS = 2 ** 33;

export class LeaseCache {
  readonly #store: RegisterStore;
  readonly #clock: Clock;
  /** By how long they last: powers of two, so there are few. */
  readonly #leases = new Map<number, Lease>();
  /** Those that are on their way: one is enough for all who need one. */
  readonly #requests = new Map<number, Promise<void>>();
  readonly #rtt: RttEstimator;

  constructor(store: RegisterStore, clock: Clock, rtt: RttEstimator) {
    this.#store = store;
    this.#clock = clock;
    this.#rtt = rtt;
  }

  /** One that lasts until then, if there is one at hand. */
  findValidUntil(at: Millis): string | undefined {
    const seconds = ttlSecondsFor(at - this.#clock.now());
    const lease = this.#leases.get(seconds);
    return lease && (lease.endsAt >= at || seconds === MAX_TTL_SECONDS) ? lease.id : undefined;
  }

  /** Asks for one that lasts until then. */
  async request(at: Millis): Promise<void> {
    const seconds = ttlSecondsFor(at - this.#clock.now());
    const asking = this.#requests.get(seconds) ?? this.#grant(seconds);
    this.#requests.set(seconds, asking);
    await asking.finally(() => this.#requests.delete(seconds));
  }

  /** One of them may be gone: somebody revoked it, or the server was set up anew. */
  clear(): void {
    this.#leases.clear();
  }

  async #grant(seconds: number): Promise<void> {
    const sentAt = this.#clock.now();
    const id = await this.#store.grantLease(seconds);
    // A write like any other: so it is known how long one takes before the first permit has to wait for it.
    this.#rtt.observe(this.#clock.now() - sentAt);
    this.#leases.set(seconds, { id, endsAt: sentAt + seconds * 1000 * (1 - CLOCK_DRIFT_RATE) });
  }
}

function ttlSecondsFor(ms: Millis): number {
  let seconds = MIN_TTL_SECONDS;
  while (seconds * 500 < ms && seconds < MAX_TTL_SECONDS) seconds *= 2;
  return seconds;
}
