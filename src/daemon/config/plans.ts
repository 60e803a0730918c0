/**
 * Plans: rules by the name of what a customer has bought, and which key has which plan. The rule of a key's plan replaces
 * the limit's own. An override of the key comes first, then a plan that the request names, then the file.
 */

import { isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireValidName } from '../../core/name.ts';
import { OptionReader, readEach } from '../../core/options.ts';
import type { Steps } from '../../core/steps.ts';
import { toBinaryKey } from '../keys/binary-key.ts';
import { PackedMap, type PackedMapData } from '../keys/packed-map.ts';
import type { ReadLines } from '../keys/text-file.ts';
import type { LimitConfig } from './limits.ts';
import type { NamedRules } from './named-rules.ts';
import type { RuleOptions } from './rule.ts';

/** The plans of keys for another thread. */
export interface PlansByKeyData {
  readonly names: readonly string[];
  readonly byKey: PackedMapData;
}

export class PlansByKey {
  readonly #names: readonly string[];
  /** Positions in the names. */
  readonly #byKey: PackedMap;

  constructor(names: readonly string[], byKey = new PackedMap()) {
    this.#names = names;
    this.#byKey = byKey;
  }

  /** Plans that another thread has read. */
  static from({ names, byKey }: PlansByKeyData): PlansByKey {
    return new PlansByKey(names, new PackedMap(byKey));
  }

  /** For another thread. */
  get data(): PlansByKeyData {
    return { names: this.#names, byKey: this.#byKey.data };
  }

  get size(): number {
    return this.#byKey.size;
  }

  get(key: string): string | undefined {
    return this.#names[this.#byKey.get(key)];
  }

  /** Adds a key that has no plan yet. */
  add(key: string, plan: string): void {
    this.#byKey.add(key, this.#names.indexOf(plan));
  }
}

const MAX_PLANS = 100;

/** Reads the plans of a limit: its own, or with `true` those of the section `plans`. */
export function readPlans(
  limit: OptionReader,
  rules: NamedRules,
  section: unknown,
): ReadonlyMap<string, RuleOptions> {
  const own = limit.get('plans');
  if (own === undefined || own === false) return new Map();
  if (own === true && section === undefined)
    limit.report('plans', 'left out, or a section `plans` beside `limits`');
  const [value, path] = own === true ? [section ?? {}, 'plans'] : [own, limit.pathOf('plans')];
  const fields = new OptionReader(path, value, 'plans by name, or true');
  const names = fields.names();
  if (names.length > MAX_PLANS)
    throw new ConfigError(path, `at most ${MAX_PLANS} plans`, names.length);
  const plans = readEach(names, (name): [string, RuleOptions] => {
    const expected = 'an object with a rule, such as bucket';
    const plan = OptionReader.collecting(fields.pathOf(name), fields.get(name), expected);
    plan.tryRead(() => requireValidName(name, plan.path));
    const named = plan.tryRead(() => rules.read(plan, name));
    plan.finish();
    return [name, named?.rule as RuleOptions];
  });
  return new Map(plans);
}

/** Separates key and plan: the last comma or space. */
const PLAN_LINE = /^(.*[^\s,])[\s,]+([^\s,]+)$/s;

const NO_PLANS = new PlansByKey([]);

/**
 * Reads the option `planFile`, unless its content is known; `limits` is undefined if they have mistakes, which are
 * reported first.
 */
export function* readPlanFile(
  fields: OptionReader,
  readLines: ReadLines,
  limits: readonly LimitConfig[] | undefined,
  known?: PlansByKey,
): Steps<PlansByKey> {
  const file = fields.optional('planFile', isNonEmptyString, 'a file name');
  if (!limits) return NO_PLANS;
  const names = new Set(limits.flatMap(({ plans }) => [...plans.keys()]));
  if (fields.has('plans') && !limits.some(({ plans }) => plans.size > 0))
    fields.report('plans', 'left out, or used by a limit with `plans: true`');
  if (file === undefined) return NO_PLANS;
  if (names.size === 0) fields.report('planFile', 'left out, or beside plans');
  if (known) return known;
  const byKey = new PlansByKey([...names]);
  yield* readLines(file, 'planFile', (line) => {
    const [, key, plan] = PLAN_LINE.exec(line) ?? [];
    if (key === undefined) throw new ConfigError('', 'a key and a plan', line);
    if (!names.has(plan)) throw new ConfigError('', `one of ${[...names].join(', ')}`, plan);
    const binaryKey = toBinaryKey(key);
    const other = byKey.get(binaryKey);
    if ((other ?? plan) !== plan) throw new ConfigError('', 'one plan for each key', line);
    if (other === undefined) byKey.add(binaryKey, plan);
  });
  return byKey;
}
