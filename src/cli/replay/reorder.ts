/**
 * Sorts calls by time as long as none is more than a bound behind the newest.
 *
 *     in order    ──▶ ring, oldest first ──┐
 *                                          ├──▶ the earlier of the two, once it is the bound behind the newest
 *     behind      ──▶ heap by time       ──┘
 *
 * A server writes a line when a call ends, and may record when it began, so lines are out of order by the length of a
 * call. A call further behind is decided late: at the time of the last decision, since the clock of a limiter never goes
 * back. At most `MAX_HELD` calls are held.
 */

import type { Millis } from '../../core/clock.ts';
import { Heap } from '../../core/heap.ts';

/** A power of two. */
const MAX_HELD = 1 << 20;

interface Call {
  readonly at: Millis;
  readonly id: number;
  readonly cost: number;
  readonly order: number;
}

export type CallSink = (at: Millis, id: number, cost: number) => void;

export class Reorder {
  /** Calls that were decided late, and how far the furthest was behind. */
  late = 0;
  furthestMs: Millis = 0;
  readonly #boundMs: Millis;
  readonly #sink: CallSink;
  #capacity = 1024;
  #ats = new Float64Array(this.#capacity);
  #ids = new Int32Array(this.#capacity);
  #costs = new Float64Array(this.#capacity);
  #head = 0;
  #size = 0;
  #newest: Millis = Number.NEGATIVE_INFINITY;
  #clock: Millis = Number.NEGATIVE_INFINITY;
  #order = 0;
  readonly #behind = new Heap<Call>((a, b) => a.at < b.at || (a.at === b.at && a.order < b.order));

  constructor(boundMs: Millis, sink: CallSink) {
    this.#boundMs = boundMs;
    this.#sink = sink;
  }

  push(at: Millis, id: number, cost: number): void {
    if (at >= this.#newest) {
      this.#newest = at;
      this.#release(at - this.#boundMs);
      if (this.#size + this.#behind.size >= MAX_HELD) this.#releaseFirst();
      this.#append(at, id, cost);
    } else if (at < this.#clock) {
      this.late++;
      this.furthestMs = Math.max(this.furthestMs, this.#newest - at);
      this.#sink(this.#clock, id, cost);
    } else {
      if (this.#size + this.#behind.size >= MAX_HELD) this.#releaseFirst();
      this.#behind.push({ at, id, cost, order: this.#order++ });
    }
  }

  /** Hands over all that is held: no more calls follow. */
  flush(): void {
    this.#release(Infinity);
  }

  /** Hands over the calls up to an instant. */
  #release(to: Millis): void {
    while (this.#size > 0 && this.#ats[this.#head] <= to) this.#releaseFirst();
    while ((this.#behind.peek()?.at ?? Infinity) <= to && this.#behind.size > 0)
      this.#releaseFirst();
  }

  /** Releases the earliest call; if two have the same time, the one in order. */
  #releaseFirst(): void {
    const head = this.#head;
    const behind = this.#behind.peek();
    if (behind !== undefined && (this.#size === 0 || behind.at < this.#ats[head])) {
      this.#behind.pop();
      this.#emit(behind.at, behind.id, behind.cost);
      return;
    }
    this.#head = (head + 1) & (this.#capacity - 1);
    this.#size--;
    this.#emit(this.#ats[head], this.#ids[head], this.#costs[head]);
  }

  #emit(at: Millis, id: number, cost: number): void {
    this.#clock = at;
    this.#sink(at, id, cost);
  }

  #append(at: Millis, id: number, cost: number): void {
    if (this.#size === this.#capacity) this.#grow();
    const tail = (this.#head + this.#size++) & (this.#capacity - 1);
    this.#ats[tail] = at;
    this.#ids[tail] = id;
    this.#costs[tail] = cost;
  }

  #grow(): void {
    const mask = this.#capacity - 1;
    const from = { ats: this.#ats, ids: this.#ids, costs: this.#costs };
    this.#capacity *= 2;
    this.#ats = new Float64Array(this.#capacity);
    this.#ids = new Int32Array(this.#capacity);
    this.#costs = new Float64Array(this.#capacity);
    for (let n = 0; n < this.#size; n++) {
      const old = (this.#head + n) & mask;
      this.#ats[n] = from.ats[old];
      this.#ids[n] = from.ids[old];
      this.#costs[n] = from.costs[old];
    }
    this.#head = 0;
  }
}
