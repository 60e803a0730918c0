/**
 * The overrides of a limit: thousands of patterns, and the few rules that they give to keys.
 *
 *     key ──▶ pattern table ──▶ number of the pattern ──▶ number of its rule ──▶ rule with its name
 */

import { described, isNonEmptyString, isString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { OptionReader, readEachInSteps } from '../../core/options.ts';
import type { Steps } from '../../core/steps.ts';
import { type Pattern, readPatternsInSteps, requireFewRegexes } from '../keys/pattern.ts';
import { NO_PATTERNS, PatternTable, type PatternTableData } from '../keys/pattern-table.ts';
import type { ReadLines } from '../keys/text-file.ts';
import type { NamedRule, NamedRules } from './named-rules.ts';

const MAX_OVERRIDES = 10_000;

/** Limiters of one limit: each has a table for its keys, and metrics. */
const MAX_OVERRIDE_RULES = 1000;

/** Overrides for another thread. */
export interface OverridesData {
  readonly length: number;
  readonly rules: readonly NamedRule[];
  readonly patterns: PatternTableData;
  readonly ruleNumbers: Uint16Array;
}

/** The override of a key. */
export interface OverrideMatch extends NamedRule {
  /** The text of the pattern that matches. */
  readonly pattern: string;
}

export class Overrides {
  /** As they were written. */
  readonly length: number;
  /** One for each name. Its limiter counts per key. */
  readonly rules: readonly NamedRule[];
  readonly patterns: PatternTable;
  /** By the number of the pattern. */
  readonly #ruleNumbers: Uint16Array;

  constructor(
    { length, rules, ruleNumbers }: Omit<OverridesData, 'patterns'>,
    patterns: PatternTable,
  ) {
    this.length = length;
    this.rules = rules;
    this.patterns = patterns;
    this.#ruleNumbers = ruleNumbers;
  }

  /** Overrides that another thread has read. */
  static from(data: OverridesData): Overrides {
    return data.length === 0 ? NO_OVERRIDES : new Overrides(data, PatternTable.from(data.patterns));
  }

  /** For another thread. */
  get data(): OverridesData {
    const { length, rules, patterns } = this;
    return { length, rules, patterns: patterns.data, ruleNumbers: this.#ruleNumbers };
  }

  /** The position in `rules` of the rule that a pattern gives. */
  ruleNumberOf(pattern: number): number {
    return this.#ruleNumbers[pattern];
  }

  best(key: string): OverrideMatch | undefined {
    const number = this.patterns.best(key);
    if (number < 0) return undefined;
    return { ...this.rules[this.#ruleNumbers[number]], pattern: this.patterns.textAt(number) };
  }

  /** The name of the rule that a key has. */
  nameFor(key: string): string | undefined {
    const number = this.patterns.best(key);
    return number < 0 ? undefined : this.rules[this.#ruleNumbers[number]].name;
  }

  /** How many patterns give each rule, by its position. */
  patternCounts(): readonly number[] {
    const counts = this.rules.map(() => 0);
    for (let n = 0; n < this.patterns.length; n++) counts[this.#ruleNumbers[n]]++;
    return counts;
  }
}

export const NO_OVERRIDES = new Overrides(
  { length: 0, rules: [], ruleNumbers: new Uint16Array() },
  NO_PATTERNS,
);

interface ReadOverride extends NamedRule {
  /** Patterns of which a key has to match one. */
  readonly match: readonly Pattern[];
}

/** Reads the overrides of a limit. @throws {ConfigError} */
export function* readOverrides(
  limit: OptionReader,
  rules: NamedRules,
  readLines: ReadLines | undefined,
): Steps<Overrides> {
  const value = limit.get('overrides');
  const path = limit.pathOf('overrides');
  if (value === undefined) return NO_OVERRIDES;
  const expected = 'a list of objects with `match` and a rule';
  if (!Array.isArray(value)) throw new ConfigError(path, expected, value);
  if (value.length > MAX_OVERRIDES) {
    const got = described(`${value.length} of them`);
    throw new ConfigError(path, `at most ${MAX_OVERRIDES} overrides`, got);
  }
  const seen = new Set<string>();
  const overrides = yield* readEachInSteps(value, function* (item, n): Steps<ReadOverride> {
    const expectedItem = 'an object with `match` and a rule';
    const fields = OptionReader.collecting(`${path}[${n}]`, item, expectedItem);
    const match = yield* fields.tryReadInSteps(readMatch(fields, seen, readLines));
    const named = fields.tryRead(() => readNamedRule(fields, rules));
    fields.finish();
    return { match, ...named } as ReadOverride;
  });
  if (rules.size > MAX_OVERRIDE_RULES) {
    const got = described(`${rules.size} of them`);
    throw new ConfigError(path, `at most ${MAX_OVERRIDE_RULES} different rules`, got);
  }
  requireFewRegexes(patternsOf(overrides), path);
  return yield* collect(overrides);
}

function* collect(overrides: readonly ReadOverride[]): Steps<Overrides> {
  const table = yield* PatternTable.inSteps(patternsOf(overrides));
  const ruleNumbers = new Uint16Array(table.length);
  const numbers = new Map<string, number>();
  const rules: NamedRule[] = [];
  let pattern = 0;
  for (const { name, rule, match } of overrides) {
    const number = numbers.get(name) ?? rules.push({ name, rule }) - 1;
    numbers.set(name, number);
    ruleNumbers.fill(number, pattern, pattern + match.length);
    pattern += match.length;
  }
  return new Overrides({ length: overrides.length, rules, ruleNumbers }, table);
}

function* patternsOf(overrides: readonly ReadOverride[]): Generator<Pattern> {
  for (const { match } of overrides) yield* match;
}

/** The rule of an override, or that of the plan which it names. */
function readNamedRule(fields: OptionReader, rules: NamedRules): NamedRule | undefined {
  const plan = fields.get('plan');
  if (plan !== undefined) {
    const rule = isString(plan) ? rules.get(plan) : undefined;
    if (!rule) fields.report('plan', 'a plan of the limit');
    return rule && { name: plan as string, rule };
  }
  const name = fields.optional('name', isNonEmptyString, 'a name');
  if (name !== undefined) fields.tryRead(() => requireValidName(name, fields.pathOf('name')));
  return rules.read(fields, name);
}

/** The patterns of an override; `seen` are those of the other overrides. */
function* readMatch(
  fields: OptionReader,
  seen: Set<string>,
  readLines: ReadLines | undefined,
): Steps<readonly Pattern[]> {
  const match = yield* readPatternsInSteps(fields.get('match'), fields.pathOf('match'), readLines);
  if (match.length === 0) fields.report('match', 'a pattern or a list of patterns');
  if (match.some(({ text }) => seen.has(text)))
    fields.report('match', 'unlike that of the other overrides');
  for (const { text } of match) seen.add(text);
  return match;
}
