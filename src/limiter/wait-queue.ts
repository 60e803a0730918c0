/**
 * A line of people who wait, the next one first.
 *
 * Joining at the end, leaving from anywhere and calling the next all take the same short time,
 * however long the line is. Whoever leaves is only crossed out, and swept away once the crossed out
 * are more than those who still stand.
 */

export const QUEUE_ORDERS = ['fifo', 'lifo', 'priority'] as const;

/** Who is next in a line: first come, last come, or whoever matters most. */
export type QueueOrder = (typeof QUEUE_ORDERS)[number];

/** What decides who is next. */
export interface QueuePosition {
  /** Its place in the order of arrival, over all lines there are. */
  readonly arrival: number;
  readonly priority: number;
}

/** By order: true if `a` has its turn before `b`. */
const PRECEDES: Readonly<Record<QueueOrder, (a: QueuePosition, b: QueuePosition) => boolean>> = {
  fifo: (a, b) => a.arrival < b.arrival,
  lifo: (a, b) => a.arrival > b.arrival,
  priority: (a, b) =>
    a.priority > b.priority || (a.priority === b.priority && a.arrival < b.arrival),
};

/** Those who left that may stand about before they are swept away, beside as many as still wait. */
const MAX_TOMBSTONES = 64;

export class WaitQueue<T extends QueuePosition> {
  readonly #precedes: (a: QueuePosition, b: QueuePosition) => boolean;
  /** Sorted: by arrival, or by who matters most. With lifo the next one stands last. */
  #entries: T[] = [];
  readonly #isSortedBefore: (a: QueuePosition, b: QueuePosition) => boolean;
  readonly #isLifo: boolean;
  /** Where the first stands who may still be there. */
  #head = 0;
  readonly #live = new Set<T>();

  constructor(order: QueueOrder) {
    this.#precedes = PRECEDES[order];
    this.#isSortedBefore = PRECEDES[order === 'lifo' ? 'fifo' : order];
    this.#isLifo = order === 'lifo';
  }

  get size(): number {
    return this.#live.size;
  }

  get first(): T | undefined {
    while (this.#head < this.#entries.length) {
      const at = this.#isLifo ? this.#entries.length - 1 : this.#head;
      const one = this.#entries[at];
      if (this.#live.has(one)) return one;
      if (this.#isLifo) this.#entries.pop();
      else this.#head++;
    }
    return undefined;
  }

  /** Whether somebody in it has its turn before `rank`. */
  hasEarlier(position: QueuePosition): boolean {
    const { first } = this;
    return first !== undefined && this.#precedes(first, position);
  }

  add(one: T): void {
    this.#live.add(one);
    let at = this.#entries.length;
    if (at > this.#head && this.#isSortedBefore(one, this.#entries[at - 1]))
      at = this.#insertionIndexOf(one);
    if (at === this.#entries.length) this.#entries.push(one);
    else this.#entries.splice(at, 0, one);
  }

  remove(one: T): void {
    this.#live.delete(one);
    if (this.#entries.length > 2 * this.#live.size + MAX_TOMBSTONES) this.#compact();
  }

  /** The first place whose holder goes after it. Those who left are sorted in, too. */
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
