/**
 * Finds the most specific of many patterns without trying each of them.
 *
 * Exact keys are found in a map. Prefixes and globs start with literal characters: those of one length
 * share a map, looked up by the beginning of the key. Only patterns without a literal prefix are tried
 * one by one. So thousands of overrides cost a new key no more than a few.
 */

import type { Pattern } from './pattern.ts';

interface RankedItem<T> {
  readonly item: T;
  readonly pattern: Pattern;
  /** Position in the configuration: the first of equally specific patterns wins. */
  readonly order: number;
}

export class PatternIndex<T> {
  readonly #byExactKey = new Map<string, T>();
  /** By length of the literal prefix, then by the prefix; the most specific first. */
  readonly #byPrefix = new Map<number, Map<string, RankedItem<T>[]>>();

  constructor(items: readonly T[], patternOf: (item: T) => Pattern) {
    for (const [order, item] of items.entries()) {
      const pattern = patternOf(item);
      const { exactKey } = pattern;
      if (exactKey === undefined)
        this.#rankedUnder(pattern.literalPrefix).push({ item, pattern, order });
      else if (!this.#byExactKey.has(exactKey)) this.#byExactKey.set(exactKey, item);
    }
    for (const byText of this.#byPrefix.values()) {
      for (const ranked of byText.values()) ranked.sort((a, b) => (isMoreSpecific(a, b) ? -1 : 1));
    }
  }

  best(key: string): T | undefined {
    const exact = this.#byExactKey.get(key);
    if (exact !== undefined) return exact;
    let best: RankedItem<T> | undefined;
    for (const [length, byText] of this.#byPrefix) {
      const found = byText.get(key.slice(0, length))?.find(({ pattern }) => pattern.matches(key));
      if (found && (!best || isMoreSpecific(found, best))) best = found;
    }
    return best?.item;
  }

  #rankedUnder(prefix: string): RankedItem<T>[] {
    const byText = this.#byPrefix.get(prefix.length) ?? new Map<string, RankedItem<T>[]>();
    this.#byPrefix.set(prefix.length, byText);
    const ranked = byText.get(prefix) ?? [];
    byText.set(prefix, ranked);
    return ranked;
  }
}

function isMoreSpecific(a: RankedItem<unknown>, b: RankedItem<unknown>): boolean {
  const difference = a.pattern.specificity - b.pattern.specificity;
  return difference > 0 || (difference === 0 && a.order < b.order);
}
