/**
 * What is out, oldest first, and what has been out for too long.
 *
 * A permit that never settles (a promise that hangs, a branch that forgot) would keep its place for
 * ever, and a limit on calls in flight would shrink with each of them until nothing moves. A call to
 * Redis that is never answered would keep everybody waiting. Both have a bound, the same for all of
 * them, so one alarm that watches the oldest will do, and coming back in time costs next to nothing.
 * It does not keep a process alive.
 */

import { alarm, type Clock, type Millis } from './clock.ts';

export interface Dated {
  /** Since when it is out. */
  readonly heldAt: Millis;
}

export class Outstanding<T extends Dated> {
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
