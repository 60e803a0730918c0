/**
 * Finds the most specific of many patterns without trying each of them.
 *
 * A key by its name is looked up. A prefix or a glob spells out how its keys begin, so those of one
 * length are looked up by the beginning of the key. Only what begins with anything is tried one by one.
 * Thousands of overrides then cost a key that nobody has seen before no more than a handful.
 */

import type { Pattern } from './pattern.ts';

interface RankedItem<T> {
  readonly item: T;
  readonly pattern: Pattern;
  /** As it was written: the first among equals counts. */
  readonly order: number;
}

export class PatternIndex<T> {
  readonly #byExactKey = new Map<string, T>();
  /** By the length of what they begin with, then by that; the best of each come first. */
  readonly #byPrefix = new Map<number, Map<string, RankedItem<T>[]>>();

  constructor(items: readonly T[], patternOf: (item: T) => Pattern) {
    for (const [place, item] of items.entries()) {
      const pattern = patternOf(item);
      const { exactKey } = pattern;
      if (exactKey === undefined)
        this.#rankedUnder(pattern.literalPrefix).push({ item, pattern, order: place });
      else if (!this.#byExactKey.has(exactKey)) this.#byExactKey.set(exactKey, item);
    }
    for (const heads of this.#byPrefix.values()) {
      for (const ranked of heads.values()) ranked.sort((a, b) => (isMoreSpecific(a, b) ? -1 : 1));
    }
  }

  /** The most specific one that matches, if one does. */
  best(key: string): T | undefined {
    const named = this.#byExactKey.get(key);
    if (named !== undefined) return named;
    let best: RankedItem<T> | undefined;
    for (const [length, heads] of this.#byPrefix) {
      const found = heads.get(key.slice(0, length))?.find(({ pattern }) => pattern.matches(key));
      if (found && (!best || isMoreSpecific(found, best))) best = found;
    }
    return best?.item;
  }

  #rankedUnder(head: string): RankedItem<T>[] {
    const heads = this.#byPrefix.get(head.length) ?? new Map<string, RankedItem<T>[]>();
    this.#byPrefix.set(head.length, heads);
    const ranked = heads.get(head) ?? [];
    heads.set(head, ranked);
    return ranked;
  }
}

function isMoreSpecific(a: RankedItem<unknown>, b: RankedItem<unknown>): boolean {
  const heavier = a.pattern.specificity - b.pattern.specificity;
  return heavier > 0 || (heavier === 0 && a.order < b.order);
}
