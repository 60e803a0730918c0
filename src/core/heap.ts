/** A binary heap: the first item by a given order in O(1), insertion and removal in O(log n). Holds pending timers. */

export class Heap<T> {
  readonly #isBefore: (a: T, b: T) => boolean;
  #items: T[] = [];

  constructor(isBefore: (a: T, b: T) => boolean) {
    this.#isBefore = isBefore;
  }

  get size(): number {
    return this.#items.length;
  }

  /** The first item, which stays in the heap. */
  peek(): T | undefined {
    return this.#items[0];
  }

  push(item: T): void {
    const items = this.#items;
    let n = items.push(item) - 1;
    for (let up = (n - 1) >> 1; n > 0 && this.#isBefore(item, items[up]); up = (n - 1) >> 1) {
      items[n] = items[up];
      n = up;
    }
    items[n] = item;
  }

  pop(): T | undefined {
    const items = this.#items;
    const top = items[0];
    const last = items.pop();
    if (last === undefined || items.length === 0) return top;
    let n = 0;
    for (let down = 1; down < items.length; down = 2 * n + 1) {
      if (down + 1 < items.length && this.#isBefore(items[down + 1], items[down])) down++;
      if (!this.#isBefore(items[down], last)) break;
      items[n] = items[down];
      n = down;
    }
    items[n] = last;
    return top;
  }

  /** Removes all items that fail the test. */
  retain(isKept: (item: T) => boolean): void {
    const kept = this.#items.filter(isKept);
    this.#items = [];
    for (const item of kept) this.push(item);
  }
}
