/**
 * Permits that are out, oldest first, and those that nobody will ever bring back.
 *
 * A call that never settles (a promise that hangs, a branch that forgot) would keep its place for
 * ever, and a limit on calls in flight would shrink with each of them until nothing moves. So a
 * permit held longer than a bound is found, reported and taken back. One alarm watches the oldest;
 * it does not keep a process alive.
 */

import { alarm, type Clock, type Millis } from './clock.ts';

export interface Held {
  readonly heldAt: Millis;
}

export class HeldPermits<T extends Held> {
  readonly #clock: Clock;
  readonly #maxMs: Millis;
  readonly #lose: (held: T) => void;
  /** In the order they were given, which is the order in which they become too old. */
  readonly #held = new Set<T>();
  #isWatching = false;

  constructor(clock: Clock, maxMs: Millis, lose: (held: T) => void) {
    this.#clock = clock;
    this.#maxMs = maxMs;
    this.#lose = lose;
  }

  get size(): number {
    return this.#held.size;
  }

  add(held: T): void {
    this.#held.add(held);
    if (!this.#isWatching && this.#maxMs < Infinity) this.#watch(held);
  }

  remove(held: T): void {
    this.#held.delete(held);
  }

  #watch(oldest: T): void {
    this.#isWatching = true;
    // Held weakly: an alarm minutes away must not keep a limiter that nobody uses any more.
    const self = new WeakRef(this);
    const look = (): void => {
      const kept = self.deref();
      if (kept) kept.#look();
    };
    alarm(this.#clock, oldest.heldAt + this.#maxMs, look, false);
  }

  #look(): void {
    const lostBefore = this.#clock.now() - this.#maxMs;
    for (const held of this.#held) {
      if (held.heldAt > lostBefore) {
        this.#watch(held);
        return;
      }
      this.#held.delete(held);
      this.#lose(held); // whoever hears of it may take another permit: it is watched from here
    }
    this.#isWatching = false;
  }
}
