/**
 * A line of people who wait, the next one first.
 *
 * Joining at the end, leaving from anywhere and calling the next all take the same short time,
 * however long the line is. Whoever leaves is only crossed out, and swept away once the crossed out
 * are more than those who still stand.
 */

export const ORDERS = ['fifo', 'lifo', 'priority'] as const;

/** Who is next in a line: first come, last come, or whoever matters most. */
export type Order = (typeof ORDERS)[number];

/** What decides who is next. */
export interface Rank {
  /** Its place in the order of arrival, over all lines there are. */
  readonly ticket: number;
  readonly priority: number;
}

/** By order: true if `a` has its turn before `b`. */
const GOES_BEFORE: Readonly<Record<Order, (a: Rank, b: Rank) => boolean>> = {
  fifo: (a, b) => a.ticket < b.ticket,
  lifo: (a, b) => a.ticket > b.ticket,
  priority: (a, b) => a.priority > b.priority || (a.priority === b.priority && a.ticket < b.ticket),
};

/** Those who left that may stand about before they are swept away, beside as many as still wait. */
const LEFT_BEHIND = 64;

export class Line<T extends Rank> {
  readonly #goesBefore: (a: Rank, b: Rank) => boolean;
  /** Sorted: by arrival, or by who matters most. With lifo the next one stands last. */
  #places: T[] = [];
  readonly #isSorted: (a: Rank, b: Rank) => boolean;
  readonly #isFromEnd: boolean;
  /** Where the first stands who may still be there. */
  #head = 0;
  readonly #standing = new Set<T>();

  constructor(order: Order) {
    this.#goesBefore = GOES_BEFORE[order];
    this.#isSorted = GOES_BEFORE[order === 'lifo' ? 'fifo' : order];
    this.#isFromEnd = order === 'lifo';
  }

  get size(): number {
    return this.#standing.size;
  }

  get first(): T | undefined {
    while (this.#head < this.#places.length) {
      const at = this.#isFromEnd ? this.#places.length - 1 : this.#head;
      const one = this.#places[at];
      if (this.#standing.has(one)) return one;
      if (this.#isFromEnd) this.#places.pop();
      else this.#head++;
    }
    return undefined;
  }

  /** Whether somebody in it has its turn before `rank`. */
  isBefore(rank: Rank): boolean {
    const { first } = this;
    return first !== undefined && this.#goesBefore(first, rank);
  }

  add(one: T): void {
    this.#standing.add(one);
    let at = this.#places.length;
    if (at > this.#head && this.#isSorted(one, this.#places[at - 1])) at = this.#placeOf(one);
    if (at === this.#places.length) this.#places.push(one);
    else this.#places.splice(at, 0, one);
  }

  remove(one: T): void {
    this.#standing.delete(one);
    if (this.#places.length > 2 * this.#standing.size + LEFT_BEHIND) this.#sweep();
  }

  /** The first place whose holder goes after it. Those who left are sorted in, too. */
  #placeOf(one: T): number {
    let low = this.#head;
    let high = this.#places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#isSorted(one, this.#places[middle])) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  #sweep(): void {
    this.#places = this.#places.filter((one) => this.#standing.has(one));
    this.#head = 0;
  }
}
