/**
 * Virtual time: runs scheduled callbacks in order of time.
 *
 * Callbacks of the same instant run in the order in which they were scheduled, including those scheduled meanwhile.
 * Time advances when all of them are done.
 */

import type { Millis } from '../core/clock.ts';
import { Heap } from '../core/heap.ts';

interface Timer {
  readonly at: Millis;
  readonly sequence: number;
  readonly callback: () => void;
}

export class Timeline {
  now: Millis;
  #nextSequence = 0;
  readonly #timers = new Heap<Timer>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );

  constructor(now: Millis = 0) {
    this.now = now;
  }

  scheduleAfter(delayMs: Millis, callback: () => void): void {
    this.scheduleAt(this.now + delayMs, callback);
  }

  /** Schedules a callback at an instant, or now if the instant is past. */
  scheduleAt(at: Millis, callback: () => void): void {
    this.#timers.push({ at: Math.max(this.now, at), sequence: this.#nextSequence++, callback });
  }

  /** The next instant with a callback; Infinity if there is none. */
  get nextAt(): Millis {
    return this.#timers.peek()?.at ?? Infinity;
  }

  /** Moves to the next instant with a callback and runs all callbacks of that instant. False if there is none. */
  runNextInstant(): boolean {
    const first = this.#timers.peek();
    if (first === undefined) return false;
    this.now = first.at;
    while (this.#timers.peek()?.at === this.now) this.#timers.pop()?.callback();
    return true;
  }
}
