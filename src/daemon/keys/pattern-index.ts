/**
 * Finds the most specific of many patterns without trying each of them.
 *
 * A key by its name is looked up. A prefix or a glob spells out how its keys begin, so those of one
 * length are looked up by the beginning of the key. Only what begins with anything is tried one by one.
 * Thousands of overrides then cost a key that nobody has seen before no more than a handful.
 */

import type { Pattern } from './pattern.ts';

interface Ranked<T> {
  readonly item: T;
  readonly pattern: Pattern;
  /** As it was written: the first among equals counts. */
  readonly place: number;
}

export class PatternIndex<T> {
  readonly #byTag = new Map<string, T>();
  /** By the length of what they begin with, then by that; the best of each come first. */
  readonly #byHead = new Map<number, Map<string, Ranked<T>[]>>();

  constructor(items: readonly T[], patternOf: (item: T) => Pattern) {
    for (const [place, item] of items.entries()) {
      const pattern = patternOf(item);
      const { tag } = pattern;
      if (tag === undefined) this.#headed(pattern.head).push({ item, pattern, place });
      else if (!this.#byTag.has(tag)) this.#byTag.set(tag, item);
    }
    for (const heads of this.#byHead.values()) {
      for (const ranked of heads.values()) ranked.sort((a, b) => (isBefore(a, b) ? -1 : 1));
    }
  }

  /** The most specific one that matches, if one does. */
  best(tag: string): T | undefined {
    const named = this.#byTag.get(tag);
    if (named !== undefined) return named;
    let best: Ranked<T> | undefined;
    for (const [length, heads] of this.#byHead) {
      const found = heads.get(tag.slice(0, length))?.find(({ pattern }) => pattern.matches(tag));
      if (found && (!best || isBefore(found, best))) best = found;
    }
    return best?.item;
  }

  #headed(head: string): Ranked<T>[] {
    const heads = this.#byHead.get(head.length) ?? new Map<string, Ranked<T>[]>();
    this.#byHead.set(head.length, heads);
    const ranked = heads.get(head) ?? [];
    heads.set(head, ranked);
    return ranked;
  }
}

function isBefore(a: Ranked<unknown>, b: Ranked<unknown>): boolean {
  const heavier = a.pattern.weight - b.pattern.weight;
  return heavier > 0 || (heavier === 0 && a.place < b.place);
}
