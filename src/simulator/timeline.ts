/**
 * Virtual time: things happen at whole milliseconds, in the order they were arranged.
 *
 * A turn is one instant: everything due then is done in the order it was set, and only when the
 * whole turn is over does time move on.
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

  /** Arranges for something to happen `span` from now. */
  scheduleAfter(span: Millis, act: () => void): void {
    this.#timers.push({ at: this.now + span, sequence: this.#nextSequence++, callback: act });
  }

  /** Moves to the next instant at which anything is due, and does all of it. False if nothing is. */
  runNextInstant(): boolean {
    const first = this.#timers.peek();
    if (first === undefined) return false;
    this.now = first.at;
    while (this.#timers.peek()?.at === this.now) this.#timers.pop()?.callback();
    return true;
  }
}
