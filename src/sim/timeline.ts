/**
 * Virtual time: things happen at whole milliseconds, in the order they were arranged.
 *
 * A turn is one instant: everything due then is done in the order it was set, and only when the
 * whole turn is over does time move on.
 */

import type { Millis } from '../clock.ts';

interface Timer {
  readonly at: Millis;
  readonly order: number;
  readonly act: () => void;
}

export class Timeline {
  now: Millis = 0;
  #order = 0;
  readonly #heap: Timer[] = [];

  /** Arranges for something to happen `span` from now. */
  after(span: Millis, act: () => void): void {
    this.#push({ at: this.now + span, order: this.#order++, act });
  }

  /** Moves to the next instant at which anything is due, and does all of it. False if nothing is. */
  turn(): boolean {
    const [first] = this.#heap;
    if (first === undefined) return false;
    this.now = first.at;
    while (this.#heap.length > 0 && this.#heap[0].at === this.now) this.#pop().act();
    return true;
  }

  #push(timer: Timer): void {
    const heap = this.#heap;
    let n = heap.push(timer) - 1;
    for (let up = (n - 1) >> 1; n > 0 && isEarlier(timer, heap[up]); up = (n - 1) >> 1) {
      heap[n] = heap[up];
      n = up;
    }
    heap[n] = timer;
  }

  #pop(): Timer {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop() as Timer;
    if (heap.length === 0) return top;
    let n = 0;
    for (let down = 1; down < heap.length; down = 2 * n + 1) {
      if (down + 1 < heap.length && isEarlier(heap[down + 1], heap[down])) down++;
      if (!isEarlier(heap[down], last)) break;
      heap[n] = heap[down];
      n = down;
    }
    heap[n] = last;
    return top;
  }
}

const isEarlier = (a: Timer, b: Timer): boolean =>
  a.at < b.at || (a.at === b.at && a.order < b.order);
