/**
 * The rules of one limit's plans and overrides, by name. A name has one rule and one limiter, `limit[name]`.
 *
 * Thousands of overrides have a few rules. Each is validated once.
 */

import type { AnyBackendFactory } from '../../backends/daemon-backend.ts';
import type { OptionReader } from '../../core/options.ts';
import { fingerprint, type RuleOptions, validateRule, writtenRule } from './rule.ts';
import { describeRule, hashOf } from './rule-name.ts';

export interface NamedRule {
  readonly name: string;
  readonly rule: RuleOptions;
}

export class NamedRules {
  readonly #backend: AnyBackendFactory | undefined;
  readonly #limitPath: string;
  readonly #valid = new Map<string, RuleOptions>();
  readonly #byName = new Map<string, RuleOptions>();

  constructor(backend: AnyBackendFactory | undefined, limitPath: string) {
    this.#backend = backend;
    this.#limitPath = limitPath;
  }

  get size(): number {
    return this.#byName.size;
  }

  get(name: string): RuleOptions | undefined {
    return this.#byName.get(name);
  }

  /** Reads a rule. Without a name it is described. */
  read(fields: OptionReader, given?: string): NamedRule | undefined {
    const rule = this.#readRule(fields);
    if (rule === undefined) return undefined;
    const name = given ?? this.#nameOf(rule);
    const other = this.#byName.get(name);
    if (other && other !== rule) fields.report('name', 'a name that no other rule has');
    this.#byName.set(name, rule);
    return { name, rule };
  }

  /** Equal rules are one object. */
  #readRule(fields: OptionReader): RuleOptions | undefined {
    const written = writtenRule(fields);
    if (written === undefined) return undefined;
    const text = fingerprint(written);
    const known = this.#valid.get(text);
    if (known) return known;
    validateRule(written, fields, this.#backend, this.#limitPath);
    this.#valid.set(text, written);
    return written;
  }

  #nameOf(rule: RuleOptions): string {
    const name = describeRule(rule);
    const other = this.#byName.get(name);
    return other === undefined || other === rule ? name : `${name} #${hashOf(fingerprint(rule))}`;
  }
}
