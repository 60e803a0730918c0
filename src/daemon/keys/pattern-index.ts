/**
 * Finds the most specific of many patterns without trying each of them.
 *
 * Exact keys are found in a map. Networks of one prefix length share a map, looked up by the network of
 * the key's address. Prefixes and globs start with literal characters: those of one length share a map,
 * looked up by the beginning of the key. Only patterns without a literal prefix are tried one by one. So
 * thousands of overrides cost a new key no more than a few.
 */

import { runAtOnce, type Steps } from '../../core/steps.ts';
import { minBitsOf, networkId } from './cidr.ts';
import { parseIpKey } from './ip-key.ts';
import type { Pattern } from './pattern.ts';

/** Patterns that are added before other work may run. */
const PATTERNS_PER_STEP = 16;

interface RankedItem<T> {
  readonly item: T;
  readonly pattern: Pattern;
  /** Position in the configuration: the first of equally specific patterns wins. */
  readonly order: number;
}

export class PatternIndex<T> {
  readonly #byExactKey = new Map<string, T>();
  /** By prefix length, the longest first, then by the network. */
  #byNetwork: ReadonlyMap<number, ReadonlyMap<string, T>> = new Map();
  /** By length of the literal prefix, then by the prefix; the most specific first. */
  readonly #byPrefix = new Map<number, Map<string, RankedItem<T>[]>>();

  constructor(items: readonly T[], patternOf: (item: T) => Pattern) {
    runAtOnce(this.#fill(items, patternOf));
  }

  /** An index of many patterns. */
  static *inSteps<T>(items: Iterable<T>, patternOf: (item: T) => Pattern): Steps<PatternIndex<T>> {
    const index = new PatternIndex<T>([], patternOf);
    yield* index.#fill(items, patternOf);
    return index;
  }

  *#fill(items: Iterable<T>, patternOf: (item: T) => Pattern): Steps<void> {
    const byNetwork = new Map<number, Map<string, T>>();
    let order = 0;
    for (const item of items) {
      if (++order % PATTERNS_PER_STEP === 0) yield;
      const pattern = patternOf(item);
      const { exactKey, network } = pattern;
      if (network) {
        const { prefix, address, prefixBits } = network;
        const ofLength = byNetwork.get(prefixBits) ?? new Map<string, T>();
        byNetwork.set(prefixBits, ofLength);
        setFirst(ofLength, networkId(prefix, address, prefixBits), item);
      } else if (exactKey !== undefined) setFirst(this.#byExactKey, exactKey, item);
      else this.#rankedUnder(pattern.literalPrefix).push({ item, pattern, order });
    }
    this.#byNetwork = new Map([...byNetwork].sort(([a], [b]) => b - a));
    for (const byText of this.#byPrefix.values()) {
      for (const ranked of byText.values()) ranked.sort((a, b) => (isMoreSpecific(a, b) ? -1 : 1));
    }
  }

  best(key: string): T | undefined {
    const exact = this.#byExactKey.get(key);
    if (exact !== undefined) return exact;
    const network = this.#byNetwork.size > 0 ? this.#bestNetwork(key) : undefined;
    if (network !== undefined) return network;
    let best: RankedItem<T> | undefined;
    for (const [length, byText] of this.#byPrefix) {
      const found = byText.get(key.slice(0, length))?.find(({ pattern }) => pattern.matches(key));
      if (found && (!best || isMoreSpecific(found, best))) best = found;
    }
    return best?.item;
  }

  /** One lookup for each prefix length. */
  #bestNetwork(key: string): T | undefined {
    const found = parseIpKey(key);
    if (!found) return undefined;
    const { prefix, address } = found;
    const minBits = minBitsOf(address);
    for (const [bits, ofLength] of this.#byNetwork) {
      const item = bits < minBits ? undefined : ofLength.get(networkId(prefix, address, bits));
      if (item !== undefined) return item;
    }
    return undefined;
  }

  #rankedUnder(prefix: string): RankedItem<T>[] {
    const byText = this.#byPrefix.get(prefix.length) ?? new Map<string, RankedItem<T>[]>();
    this.#byPrefix.set(prefix.length, byText);
    const ranked = byText.get(prefix) ?? [];
    byText.set(prefix, ranked);
    return ranked;
  }
}

/** Of equally specific patterns the first in the configuration wins. */
function setFirst<T>(map: Map<string, T>, key: string, item: T): void {
  if (!map.has(key)) map.set(key, item);
}

function isMoreSpecific(a: RankedItem<unknown>, b: RankedItem<unknown>): boolean {
  const difference = a.pattern.specificity - b.pattern.specificity;
  return difference > 0 || (difference === 0 && a.order < b.order);
}
