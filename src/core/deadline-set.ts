/**
 * What is out, oldest first, and what has been out for too long.
 *
 * A permit that never settles (a promise that hangs, a branch that forgot) would keep its place for
 * ever, and a limit on calls in flight would shrink with each of them until nothing moves. A call to
 * Redis that is never answered would keep everybody waiting. Both have a bound, the same for all of
 * them, so one alarm that watches the oldest will do, and coming back in time costs next to nothing.
 * It does not keep a process alive.
 */

import { type Clock, type Millis, schedule } from './clock.ts';

export interface Issued {
  /** Since when it is out. */
  readonly issuedAt: Millis;
}

export class DeadlineSet<T extends Issued> {
  readonly #clock: Clock;
  readonly #timeoutMs: Millis;
  readonly #onExpired: (held: T) => void;
  /** In the order they were given, which is the order in which they become too old. */
  readonly #items = new Set<T>();
  #isScheduled = false;

  constructor(clock: Clock, timeoutMs: Millis, onExpired: (held: T) => void) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#onExpired = onExpired;
  }

  get size(): number {
    return this.#items.size;
  }

  add(held: T): void {
    this.#items.add(held);
    if (!this.#isScheduled && this.#timeoutMs < Infinity) this.#scheduleExpiry(held);
  }

  remove(held: T): void {
    this.#items.delete(held);
  }

  #scheduleExpiry(oldest: T): void {
    this.#isScheduled = true;
    // Held weakly: an alarm minutes away must not keep a limiter that nobody uses any more.
    const self = new WeakRef(this);
    const look = (): void => {
      const kept = self.deref();
      if (kept) kept.#expireDue();
    };
    schedule(this.#clock, oldest.issuedAt + this.#timeoutMs, look, false);
  }

  #expireDue(): void {
    const lostBefore = this.#clock.now() - this.#timeoutMs;
    for (const held of this.#items) {
      if (held.issuedAt > lostBefore) {
        this.#scheduleExpiry(held);
        return;
      }
      this.#items.delete(held);
      this.#onExpired(held); // whoever hears of it may take another permit: it is watched from here
    }
    this.#isScheduled = false;
  }
}
