/**
 * Adding at the end, removing anywhere and reading the next waiter take constant time. A removed waiter stays in the
 * array as a tombstone. The array is compacted when tombstones outnumber waiters.
 */

import type { Flow } from '../core/flow.ts';
import { MAX_TOMBSTONES } from '../core/waiter-set.ts';

export const QUEUE_ORDERS = ['fifo', 'lifo', 'priority', 'fair'] as const;

/** The next waiter: `fifo` first or `lifo` last to arrive, `priority` the highest, `fair` of the least served flow. */
export type QueueOrder = (typeof QUEUE_ORDERS)[number];

/** Orders with a single queue: `fair` has one for each flow, in `fair-wait-queue.ts`. */
type ArrivalOrder = Exclude<QueueOrder, 'fair'>;

/** Determines which waiter is next. */
export interface QueuePosition {
  /** Order of arrival, over all queues of the process. */
  readonly arrival: number;
  readonly priority: number;
  /** Units that the call takes when it is served. Default 1. */
  readonly cost?: number;
  /** The flow in a `fair` queue; undefined: the flow of all calls that name none. */
  readonly flow?: Flow | undefined;
}

/** The waiters of one key. */
export interface WaiterQueue<T extends QueuePosition> {
  readonly size: number;
  readonly first: T | undefined;
  /** The waiter that a full queue refuses first. */
  readonly last: T | undefined;
  /** The next `count` waiters in the order of their turn. */
  front(count: number): T[];
  /** Whether a waiter in this queue is served before `position`. */
  hasEarlier(position: QueuePosition): boolean;
  /** The cost of the waiters served before `position`. In long queues the result may be too low. */
  costBefore(position: QueuePosition): number;
  add(one: T): void;
  /** Makes it the next waiter, in a `fair` queue the next of its flow: it had its turn and could not use it. */
  addFirst(one: T): void;
  remove(one: T): void;
  /** `fair` queue: the waiter has its permit. Called before it is removed. */
  onServed?(one: T): void;
  /** `fair` queue: the waiter that a full queue removes for a call of this flow. */
  displacedBy?(flow: Flow | undefined): T | undefined;
}

/** True if `a` is served before `b`, by order. */
const PRECEDES: Readonly<Record<ArrivalOrder, (a: QueuePosition, b: QueuePosition) => boolean>> = {
  fifo: (a, b) => a.arrival < b.arrival,
  lifo: (a, b) => a.arrival > b.arrival,
  priority: (a, b) =>
    a.priority > b.priority || (a.priority === b.priority && a.arrival < b.arrival),
};

/** The most waiters whose cost `costBefore` adds up, where the position is not the last. */
const MAX_SCANNED = 64;

const costOf = ({ cost = 1 }: QueuePosition): number => cost;

let lastArrival = 0;

/** The next position in the order of arrival. */
export const nextArrival = (): number => ++lastArrival;

export class WaitQueue<T extends QueuePosition> implements WaiterQueue<T> {
  readonly #precedes: (a: QueuePosition, b: QueuePosition) => boolean;
  /** Sorted by arrival or priority, tombstones included. With lifo the next waiter is the last entry. */
  #entries: T[] = [];
  readonly #isSortedBefore: (a: QueuePosition, b: QueuePosition) => boolean;
  readonly #isLifo: boolean;
  /** No entry before this index is live. */
  #head = 0;
  readonly #live = new Set<T>();
  /** The sum of the costs of live waiters. */
  #cost = 0;

  constructor(order: ArrivalOrder) {
    this.#precedes = PRECEDES[order];
    this.#isSortedBefore = PRECEDES[order === 'lifo' ? 'fifo' : order];
    this.#isLifo = order === 'lifo';
  }

  get size(): number {
    return this.#live.size;
  }

  get first(): T | undefined {
    return this.#liveAt(!this.#isLifo);
  }

  get last(): T | undefined {
    return this.#liveAt(this.#isLifo);
  }

  /** The live waiter at the head or the end of the array; drops tombstones there. */
  #liveAt(isHead: boolean): T | undefined {
    while (this.#head < this.#entries.length) {
      const one = this.#entries[isHead ? this.#head : this.#entries.length - 1];
      if (this.#live.has(one)) return one;
      if (isHead) this.#head++;
      else this.#entries.pop();
    }
    return undefined;
  }

  front(count: number): T[] {
    const waiters: T[] = [];
    const { length } = this.#entries;
    for (let n = this.#head; n < length && waiters.length < count; n++) {
      const one = this.#entries[this.#isLifo ? length - 1 - (n - this.#head) : n];
      if (this.#live.has(one)) waiters.push(one);
    }
    return waiters;
  }

  hasEarlier(position: QueuePosition): boolean {
    const { first } = this;
    return first !== undefined && this.#precedes(first, position);
  }

  costBefore(position: QueuePosition): number {
    const { last } = this;
    if (last === undefined) return 0;
    if (!this.#isLifo && last !== position && this.#precedes(last, position)) return this.#cost;
    let cost = 0;
    for (const one of this.front(MAX_SCANNED)) {
      if (!this.#precedes(one, position)) break;
      cost += costOf(one);
    }
    return cost;
  }

  add(one: T): void {
    this.#addLive(one);
    let at = this.#entries.length;
    if (at > this.#head && this.#isSortedBefore(one, this.#entries[at - 1]))
      at = this.#insertionIndexOf(one);
    if (at === this.#entries.length) this.#entries.push(one);
    else this.#entries.splice(at, 0, one);
  }

  addFirst(one: T): void {
    this.#compact(); // it may have a tombstone here
    this.#addLive(one);
    if (this.#isLifo) this.#entries.push(one);
    else this.#entries.unshift(one);
  }

  #addLive(one: T): void {
    this.#live.add(one);
    this.#cost += costOf(one);
  }

  remove(one: T): void {
    if (this.#live.delete(one)) this.#cost -= costOf(one);
    if (this.#live.size === 0) this.#cost = 0; // without the rounding errors of fractions
    if (this.#entries.length > 2 * this.#live.size + MAX_TOMBSTONES) this.#compact();
  }

  /** The index of the first entry that sorts after it. */
  #insertionIndexOf(one: T): number {
    let low = this.#head;
    let high = this.#entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#isSortedBefore(one, this.#entries[middle])) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  #compact(): void {
    this.#entries = this.#entries.filter((one) => this.#live.has(one));
    this.#head = 0;
  }
}
