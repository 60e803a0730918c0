/**
 * Names the limiter of an override by its rule: `bucket 100/s, burst 20`.
 *
 * Overrides with the same rule share a limiter, and its name shows in responses, metrics and snapshots. So it holds no
 * key and no pattern, and depends on the rule alone: it is the same after a reload.
 */

import { createHasher } from '../../core/hash.ts';
import { isRecord } from '../../core/options.ts';
import type { RuleOptions } from './rule.ts';

/** A longer description becomes the kind of the rule and a hash. */
const MAX_DESCRIPTION_CHARS = 48;

/** Options that are shown without their name. */
const UNNAMED_OPTIONS = ['rate', 'every'];

export function describeRule({ limit, ...bounds }: RuleOptions): string {
  const [kind] = Object.keys(limit);
  const text = [describeLimit(limit), ...describeOptions(bounds)].join(', ');
  return text.length > MAX_DESCRIPTION_CHARS ? `${kind} #${hashOf(text)}` : text;
}

/** Tells two rules apart that have the same description, such as a rate of 1 and of '1/s'. */
export const hashOf = (text: string): string => {
  const hasher = createHasher([0, 0]);
  hasher.hash(text);
  return (hasher.low >>> 0).toString(16);
};

function describeLimit(limit: object): string {
  const [[kind, options]] = Object.entries(limit);
  if (Array.isArray(options)) return options.map(describeLimit).join(' + ');
  return [kind, describeOptions(options).join(', ')].filter((part) => part !== '').join(' ');
}

/** Sorted: the order in which they were written makes no difference. */
function describeOptions(options: unknown): readonly string[] {
  if (!isRecord(options)) return [String(options)];
  const isNamed = (name: string): boolean => !UNNAMED_OPTIONS.includes(name);
  return Object.entries(options)
    .sort(([a], [b]) => Number(isNamed(a)) - Number(isNamed(b)) || (a < b ? -1 : 1))
    .map(([name, value]) => {
      const text = isRecord(value) ? JSON.stringify(value) : String(value);
      return isNamed(name) ? `${name} ${text}` : text;
    });
}
