/**
 * Many patterns, numbered in their order, and the most specific one of a key without trying each of them.
 *
 * Exact keys are found in a packed map. Networks of one prefix length share one, looked up by the network of the key's
 * address. Prefixes and globs start with literal characters: those of one length share a map, looked up by the beginning
 * of the key. If many have one prefix, or none, only those are tried whose literals occur in the key (literal-index.ts).
 * So thousands of overrides cost a new key no more than a few.
 *
 * Exact keys and networks, of which there may be 500,000, are no objects: see packed-map.ts.
 */

import { runAtOnce, type Steps } from '../../core/steps.ts';
import { toBinaryKey, toKeyText } from './binary-key.ts';
import { minBitsOf, networkId } from './cidr.ts';
import { parseIpKey } from './ip-key.ts';
import { LiteralIndex } from './literal-index.ts';
import { PackedMap, type PackedMapData } from './packed-map.ts';
import { type Pattern, readPattern } from './pattern.ts';

/** If more patterns have one literal prefix, only those are tried whose literals occur in the key. */
const MAX_TRIED = 16;

/** Patterns that are added before other work may run. */
const PATTERNS_PER_STEP = 16;

/** A table for another thread. */
export interface PatternTableData {
  readonly texts: PackedMapData;
  readonly exact: PackedMapData;
  readonly networks: readonly (readonly [prefixBits: number, networks: PackedMapData])[];
  readonly others: readonly (readonly [number: number, written: Pattern['written']])[];
}

/** A pattern that is neither a key nor a network. */
interface RankedPattern {
  readonly pattern: Pattern;
  /** The first of equally specific patterns wins. */
  readonly number: number;
}

export class PatternTable {
  /** The texts of all patterns, as binary keys. */
  readonly #texts: PackedMap;
  readonly #exact: PackedMap;
  /** By prefix length, the longest first. */
  readonly #networks: Map<number, PackedMap>;
  readonly #others: RankedPattern[] = [];
  /** By length of the literal prefix, then by the prefix; the most specific first. */
  readonly #byPrefix = new Map<number, Map<string, RankedPattern[]>>();
  /** Indexes of the patterns with one prefix, if these are more than `MAX_TRIED`. */
  readonly #indexes = new Map<readonly RankedPattern[], LiteralIndex<RankedPattern>>();

  static of(patterns: Iterable<Pattern>): PatternTable {
    return runAtOnce(PatternTable.inSteps(patterns));
  }

  static *inSteps(patterns: Iterable<Pattern>): Steps<PatternTable> {
    const table = new PatternTable();
    for (const pattern of patterns) {
      table.#add(pattern);
      if (table.length % PATTERNS_PER_STEP === 0) yield;
    }
    table.#sort();
    return table;
  }

  /** A table that another thread has filled. */
  static from(data: PatternTableData): PatternTable {
    if (data.texts.size === 0) return NO_PATTERNS;
    const table = new PatternTable(data);
    for (const [number, written] of data.others) table.#rank(readPattern(written, ''), number);
    table.#sort();
    return table;
  }

  private constructor(data?: PatternTableData) {
    this.#texts = new PackedMap(data?.texts);
    this.#exact = new PackedMap(data?.exact);
    const networks = data?.networks ?? [];
    this.#networks = new Map(networks.map(([bits, packed]) => [bits, new PackedMap(packed)]));
  }

  /** For another thread. */
  get data(): PatternTableData {
    return {
      texts: this.#texts.data,
      exact: this.#exact.data,
      networks: [...this.#networks].map(([bits, networks]) => [bits, networks.data]),
      others: this.#others.map(({ number, pattern }) => [number, pattern.written]),
    };
  }

  get length(): number {
    return this.#texts.size;
  }

  /** The number of the most specific pattern that matches; -1: none does. */
  best(key: string): number {
    const exact = this.#exact.get(key);
    if (exact >= 0) return exact;
    const network = this.#networks.size > 0 ? this.#bestNetwork(key) : -1;
    return network >= 0 ? network : this.#bestOther(key);
  }

  textAt(number: number): string {
    return toKeyText(this.#texts.keyAt(number));
  }

  /** The number of the pattern with a text; -1: none has it. */
  find(text: string): number {
    return this.#texts.get(toBinaryKey(text));
  }

  #add(pattern: Pattern): void {
    const number = this.length;
    this.#texts.add(toBinaryKey(pattern.text), number);
    const { exactKey, network } = pattern;
    if (network) {
      const { prefix, address, prefixBits } = network;
      const networks = this.#networks.get(prefixBits) ?? new PackedMap();
      this.#networks.set(prefixBits, networks);
      networks.add(networkId(prefix, address, prefixBits), number);
    } else if (exactKey !== undefined) this.#exact.add(exactKey, number);
    else this.#rank(pattern, number);
  }

  #rank(pattern: Pattern, number: number): void {
    const ranked = { pattern, number };
    const { literalPrefix } = pattern;
    this.#others.push(ranked);
    const byText = this.#byPrefix.get(literalPrefix.length) ?? new Map<string, RankedPattern[]>();
    this.#byPrefix.set(literalPrefix.length, byText);
    const others = byText.get(literalPrefix);
    if (others) others.push(ranked);
    else byText.set(literalPrefix, [ranked]);
  }

  #sort(): void {
    const longestFirst = [...this.#networks].sort(([a], [b]) => b - a);
    this.#networks.clear();
    for (const [bits, networks] of longestFirst) this.#networks.set(bits, networks);
    for (const byText of this.#byPrefix.values())
      for (const ranked of byText.values()) {
        ranked.sort((a, b) => (isMoreSpecific(a, b) ? -1 : 1));
        if (ranked.length > MAX_TRIED) this.#indexes.set(ranked, new LiteralIndex(ranked));
      }
  }

  /** One lookup for each prefix length. */
  #bestNetwork(key: string): number {
    const found = parseIpKey(key);
    if (!found) return -1;
    const { prefix, address } = found;
    const minBits = minBitsOf(address);
    for (const [bits, networks] of this.#networks) {
      const number = bits < minBits ? -1 : networks.get(networkId(prefix, address, bits));
      if (number >= 0) return number;
    }
    return -1;
  }

  #bestOther(key: string): number {
    let best: RankedPattern | undefined;
    /** The most specific come first: the first that matches is the best, and the search ends at a worse one. */
    const search = (ranked: readonly RankedPattern[]): void => {
      for (const each of ranked) {
        if (best && !isMoreSpecific(each, best)) return;
        if (!each.pattern.matches(key)) continue;
        best = each;
        return;
      }
    };
    for (const [length, byText] of this.#byPrefix) {
      const ranked = byText.get(key.slice(0, length));
      if (ranked === undefined) continue;
      const index = this.#indexes.get(ranked);
      if (index) index.forEachCandidates(key, search);
      else search(ranked);
    }
    return best?.number ?? -1;
  }
}

/** The first one in the configuration wins if two are equally specific. */
function isMoreSpecific(a: RankedPattern, b: RankedPattern): boolean {
  const difference = a.pattern.specificity - b.pattern.specificity;
  return difference > 0 || (difference === 0 && a.number < b.number);
}

export const NO_PATTERNS = PatternTable.of([]);
