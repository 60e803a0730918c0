/** What part of a limit each group has as its own, before anybody steals. */

import { ConfigError } from '../../core/errors.ts';

export interface GroupWeight {
  /** How much of the limit compared to others. */
  readonly weight: number;
  /** At least this part of the limit, from 0 to 1. */
  readonly min: number;
}

/**
 * Parts by weight, where whoever would get less than its `min` gets that, and the others share the rest by theirs.
 * They add up to 1.
 *
 * @throws {ConfigError} if more is guaranteed than there is.
 */
export function groupFractions(groups: ReadonlyMap<string, GroupWeight>): Map<string, number> {
  const guaranteed = [...groups.values()].reduce((sum, { min }) => sum + min, 0);
  if (guaranteed > 1 + 1e-9) {
    throw new ConfigError('groups', 'guaranteed at most 1 in all by their `min`', guaranteed);
  }
  const hasWeight = [...groups.values()].some(({ weight }) => weight > 0);
  if (!hasWeight && guaranteed < 1 - 1e-9) {
    throw new ConfigError('groups', 'groups of which one has a `weight` above 0', guaranteed);
  }
  const parts = new Map<string, number>();
  let open = [...groups];
  // With the least raised the others have less to share, so another may fall below: until none does.
  for (;;) {
    const rest = 1 - [...parts.values()].reduce((sum, part) => sum + part, 0);
    const weights = open.reduce((sum, [, { weight }]) => sum + weight, 0);
    const partOf = (weight: number): number => (weights > 0 ? (rest * weight) / weights : 0);
    const low = open.filter(([, { weight, min }]) => partOf(weight) < min);
    if (low.length === 0) {
      for (const [name, { weight }] of open) parts.set(name, partOf(weight));
      return new Map([...groups.keys()].map((name) => [name, parts.get(name) ?? 0]));
    }
    for (const [name, { min }] of low) parts.set(name, min);
    open = open.filter((group) => !low.includes(group));
  }
}
