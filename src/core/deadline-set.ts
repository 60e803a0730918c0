/**
 * Items with one common timeout, oldest first, watched by a single timer for the oldest.
 *
 * A permit that never settles would occupy its slot for ever, and a concurrency limit would shrink with each of them.
 * A Redis command without a reply would block its caller. Both need a bound. Because the timeout is the same for all
 * items, insertion order is expiry order: adding and removing cost one set operation. The timer does not keep the
 * process alive.
 *
 * Where many items can expire together, `maxAtOnce` bounds how many do in one turn of the event loop.
 *
 * On Cloudflare Workers a timer ends with its request, so there is none: the owner calls `expireOverdue` before it decides.
 */

import { type Clock, type Millis, schedule, timersEndWithRequest } from './clock.ts';

export interface Issued {
  /** When its timeout began. */
  readonly issuedAt: Millis;
}

/** Time for other events between two turns that expire items. */
const PAUSE_MS: Millis = 2;

export class DeadlineSet<T extends Issued> {
  readonly #clock: Clock;
  readonly #timeoutMs: Millis;
  readonly #onExpired: (item: T) => void;
  readonly #maxAtOnce: number;
  readonly #items = new Set<T>();
  #isScheduled = false;

  constructor(clock: Clock, timeoutMs: Millis, onExpired: (item: T) => void, maxAtOnce = Infinity) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#onExpired = onExpired;
    this.#maxAtOnce = maxAtOnce;
  }

  get size(): number {
    return this.#items.size;
  }

  add(item: T): void {
    this.#items.add(item);
    if (!this.#isScheduled && this.#timeoutMs < Infinity && !timersEndWithRequest)
      this.#scheduleExpiry(item.issuedAt + this.#timeoutMs);
  }

  remove(item: T): void {
    this.#items.delete(item);
  }

  /** Expires what is due, where no timer does. */
  expireOverdue(): void {
    const now = this.#clock.now();
    for (const item of this.#items) {
      if (item.issuedAt + this.#timeoutMs > now) return;
      this.#items.delete(item);
      this.#onExpired(item);
    }
  }

  #scheduleExpiry(at: Millis): void {
    this.#isScheduled = true;
    // A weak reference: a timer that is minutes away must not keep an unused limiter in memory.
    const self = new WeakRef(this);
    const expireDue = (): void => {
      const set = self.deref();
      if (set) set.#expireDue();
    };
    schedule(this.#clock, at, expireDue, false);
  }

  #expireDue(): void {
    const now = this.#clock.now();
    let expired = 0;
    for (const item of this.#items) {
      const dueAt = item.issuedAt + this.#timeoutMs;
      if (dueAt > now || expired === this.#maxAtOnce) {
        this.#scheduleExpiry(dueAt > now ? dueAt : now + PAUSE_MS);
        return;
      }
      expired++;
      this.#items.delete(item);
      this.#onExpired(item); // may add a new item, which this loop then reaches
    }
    this.#isScheduled = false;
  }
}
