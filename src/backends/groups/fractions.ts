import { ConfigError } from '../../core/errors.ts';

export interface GroupWeight {
  /** Weight relative to those of the other groups. */
  readonly weight: number;
  /** Guaranteed fraction of the limit, from 0 to 1. */
  readonly min: number;
}

/**
 * Fractions by weight that add up to 1. A group below its `min` gets its `min`; the remainder is divided by weight.
 *
 * @throws {ConfigError} if the `min` of all groups add up to more than 1.
 */
export function groupFractions(groups: ReadonlyMap<string, GroupWeight>): Map<string, number> {
  const guaranteed = [...groups.values()].reduce((sum, { min }) => sum + min, 0);
  if (guaranteed > 1 + 1e-9) {
    throw new ConfigError('groups', 'groups whose `min` add up to at most 1', guaranteed);
  }
  const hasWeight = [...groups.values()].some(({ weight }) => weight > 0);
  if (!hasWeight && guaranteed < 1 - 1e-9) {
    const expected = 'groups of which at least one has a `weight` above 0';
    throw new ConfigError('groups', expected, guaranteed);
  }
  const fractions = new Map<string, number>();
  let open = [...groups];
  // Raising one group to its `min` leaves less for the rest, so another may fall below its own: repeat.
  for (;;) {
    const rest = 1 - [...fractions.values()].reduce((sum, fraction) => sum + fraction, 0);
    const weights = open.reduce((sum, [, { weight }]) => sum + weight, 0);
    const byWeight = (weight: number): number => (weights > 0 ? (rest * weight) / weights : 0);
    const low = open.filter(([, { weight, min }]) => byWeight(weight) < min);
    if (low.length === 0) {
      for (const [name, { weight }] of open) fractions.set(name, byWeight(weight));
      return new Map([...groups.keys()].map((name) => [name, fractions.get(name) ?? 0]));
    }
    for (const [name, { min }] of low) fractions.set(name, min);
    open = open.filter((group) => !low.includes(group));
  }
}
