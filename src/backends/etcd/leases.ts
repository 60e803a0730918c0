/**
 * Leases that registers go with, so that keys nobody uses any more disappear.
 *
 * A register may go when it is as good as new, and no sooner. A lease ends no sooner than its time after it was asked
 * for; one that lasts twice as long as a register matters serves many of them for as long again. So there is one request
 * for a lease every half minute at most, however many keys there are, and none is ever renewed.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { DRIFT } from '../../core/clock-offset.ts';
import type { Trips } from './rtt-estimator.ts';
import type { RegisterServer } from './store.ts';

interface Lease {
  readonly id: string;
  /** No sooner than this, on our clock. */
  readonly endsAt: Millis;
}

const SECONDS_MIN = 64;
/** As long as etcd lets a lease be, in powers of two: 272 years. */
const SECONDS_MAX = 2 ** 33;

export class Leases {
  readonly #server: RegisterServer;
  readonly #clock: Clock;
  /** By how long they last: powers of two, so there are few. */
  readonly #leases = new Map<number, Lease>();
  /** Those that are on their way: one is enough for all who need one. */
  readonly #asking = new Map<number, Promise<void>>();
  readonly #trips: Trips;

  constructor(server: RegisterServer, clock: Clock, trips: Trips) {
    this.#server = server;
    this.#clock = clock;
    this.#trips = trips;
  }

  /** One that lasts until then, if there is one at hand. */
  until(at: Millis): string | undefined {
    const seconds = secondsFor(at - this.#clock.now());
    const lease = this.#leases.get(seconds);
    return lease && (lease.endsAt >= at || seconds === SECONDS_MAX) ? lease.id : undefined;
  }

  /** Asks for one that lasts until then. */
  async ask(at: Millis): Promise<void> {
    const seconds = secondsFor(at - this.#clock.now());
    const asking = this.#asking.get(seconds) ?? this.#ask(seconds);
    this.#asking.set(seconds, asking);
    await asking.finally(() => this.#asking.delete(seconds));
  }

  /** One of them may be gone: somebody revoked it, or the server was set up anew. */
  forget(): void {
    this.#leases.clear();
  }

  async #ask(seconds: number): Promise<void> {
    const sentAt = this.#clock.now();
    const id = await this.#server.lease(seconds);
    // A write like any other: so it is known how long one takes before the first permit has to wait for it.
    this.#trips.seen(this.#clock.now() - sentAt);
    this.#leases.set(seconds, { id, endsAt: sentAt + seconds * 1000 * (1 - DRIFT) });
  }
}

function secondsFor(ms: Millis): number {
  let seconds = SECONDS_MIN;
  while (seconds * 500 < ms && seconds < SECONDS_MAX) seconds *= 2;
  return seconds;
}
