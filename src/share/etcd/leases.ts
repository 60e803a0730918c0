/**
 * Leases that registers go with, so that keys nobody uses any more disappear.
 *
 * A register may go when it is as good as new, and no sooner. A lease ends no sooner than its time after it was asked
 * for; one that lasts twice as long as a register matters serves many of them for as long again. So there is one request
 * for a lease every half minute at most, however many keys there are, and none is ever renewed.
 */

import type { Clock, Millis } from '../../clock.ts';
import { DRIFT } from '../pool/ahead.ts';
import type { RegisterServer } from './server.ts';

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
  readonly #leases = new Map<number, Promise<Lease>>();

  constructor(server: RegisterServer, clock: Clock) {
    this.#server = server;
    this.#clock = clock;
  }

  /** One that lasts until then. */
  async until(at: Millis): Promise<string> {
    const seconds = secondsFor(at - this.#clock.now());
    const known = this.#leases.get(seconds);
    const lease = await known;
    if (lease && (lease.endsAt >= at || seconds === SECONDS_MAX)) return lease.id;
    // Somebody else may have asked for another meanwhile: one is enough.
    if (this.#leases.get(seconds) === known) this.#leases.set(seconds, this.#ask(seconds));
    return this.until(at);
  }

  /** One of them may be gone: somebody revoked it, or the server was set up anew. */
  forget(): void {
    this.#leases.clear();
  }

  async #ask(seconds: number): Promise<Lease> {
    const sentAt = this.#clock.now();
    const id = await this.#server.lease(seconds);
    return { id, endsAt: sentAt + seconds * 1000 * (1 - DRIFT) };
  }
}

function secondsFor(ms: Millis): number {
  let seconds = SECONDS_MIN;
  while (seconds * 500 < ms && seconds < SECONDS_MAX) seconds *= 2;
  return seconds;
}
