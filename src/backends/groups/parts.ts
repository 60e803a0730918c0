import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import type { Policy } from '../../policies/policy.ts';
import type { GroupBucket } from './limits.ts';

export interface GroupTerms {
  readonly self: string;
  /** The group's fraction of the limit, from 0 to 1. */
  readonly fraction: number;
  /** Fraction of its burst that a group reserves for its own calls. */
  readonly reserve: number;
  readonly deadlineMs: Millis;
}

/** The rule of a group, and the numbers of its bucket. */
type GroupTokens = Pick<GroupBucket, 'policy' | 'perMs' | 'burst' | 'reserveLevel' | 'isFixed'>;

/** @throws {ConfigError} if the rule cannot be divided, or the group would have less than one unit. */
export function partOf(policy: Policy, group: GroupTerms): GroupTokens {
  const [{ policy: rule }, ...others] = policy.rules;
  if (!rule.divide?.ofGroup || others.length > 0) {
    const expected =
      'a bucket, a window or a lockout on failures: only these are divided into parts (other rules: Redis or etcd)';
    throw new ConfigError('limit', expected, policy.kind);
  }
  const { self, fraction, reserve } = group;
  if (fraction <= 0) {
    const expected = 'above 0, or a `min`: a group needs a bucket to borrow into';
    throw new ConfigError(`groups.${self}.weight`, expected, 0);
  }
  const part = rule.divide.ofGroup(fraction, group.deadlineMs);
  if (part.units < 1) {
    const expected = `at least ${Math.ceil(1 / fraction)}, so that group ${self} has one token of it`;
    throw new ConfigError(`limit.${part.option}`, expected, part.wholeUnits);
  }
  const { perMs, units: burst } = part;
  const [reserveLevel, isFixed] = [perMs > 0 ? burst * reserve : 0, perMs === 0];
  return { policy: part.policy, perMs, burst, reserveLevel, isFixed };
}
