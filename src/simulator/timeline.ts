/**
 * Virtual time: runs scheduled callbacks in order of time.
 *
 * Callbacks of the same instant run in the order in which they were scheduled, including those scheduled meanwhile.
 * Time moves on when all of them are done.
 */

import type { Millis } from '../core/clock.ts';
import { Heap } from '../core/heap.ts';

interface Timer {
  readonly at: Millis;
  readonly sequence: number;
  readonly callback: () => void;
}

export class Timeline {
  now: Millis = 0;
  #nextSequence = 0;
  readonly #timers = new Heap<Timer>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );

  scheduleAfter(delayMs: Millis, callback: () => void): void {
    this.scheduleAt(this.now + delayMs, callback);
  }

  /** At an instant that is not in the past. */
  scheduleAt(at: Millis, callback: () => void): void {
    this.#timers.push({ at, sequence: this.#nextSequence++, callback });
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
