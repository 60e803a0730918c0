import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { bucket } from '../../policies/bucket.ts';
import { lockoutOfGroup } from '../../policies/lockout.ts';
import type { LockoutTerms } from '../../policies/lockout-rule.ts';
import type { BucketTerms, Policy } from '../../policies/policy.ts';
import { type WindowTerms, windowOfGroup } from '../../policies/window.ts';
import type { GroupBucket } from './limits.ts';

/** Tolerated floating-point error of a whole part. */
const EPSILON = 1e-9;

export interface GroupTerms {
  readonly self: string;
  /** The group's fraction of the limit, from 0 to 1. */
  readonly fraction: number;
  /** Fraction of its burst that a group reserves for its own calls. */
  readonly reserve: number;
  readonly deadlineMs: Millis;
}

/** The rule of a group, and the numbers of its bucket. */
export type GroupPart = Pick<
  GroupBucket,
  'policy' | 'perMs' | 'burst' | 'reserveLevel' | 'isFixed'
>;

/** The group's part. @throws {ConfigError} if the rule cannot be divided, or the part is less than one unit. */
export function partOf(policy: Policy, group: GroupTerms): GroupPart {
  const divide = dividerOf(policy);
  if (!divide) {
    const expected =
      'a bucket, a window or a lockout on failures: only these are divided into parts (other rules: Redis or etcd)';
    throw new ConfigError('limit', expected, policy.kind);
  }
  if (group.fraction > 0) return divide(group);
  const expected = 'above 0, or a `min`: a group needs a bucket to borrow into';
  throw new ConfigError(`groups.${group.self}.weight`, expected, 0);
}

function dividerOf(policy: Policy): ((group: GroupTerms) => GroupPart) | undefined {
  const [whole, ...others] = policy.buckets ?? [];
  if (whole && others.length === 0) return (group) => partOfBucket(whole, group);
  if (policy.kind === 'window') return (group) => partOfWindow(policy, group);
  if (policy.kind === 'lockout' && policy.traits.takesReports)
    return (group) => partOfLockout(policy, group);
  return undefined;
}

/** The group's fraction of rate, burst and debt. */
function partOfBucket({ perMs, burst: wholeBurst, maxDebt }: BucketTerms, group: GroupTerms) {
  const { fraction, reserve } = group;
  const burst = wholeBurst * fraction;
  requireOne(burst, 'bucket.burst', wholeBurst, group);
  const debt = maxDebt === Infinity ? {} : { maxDebt: maxDebt * fraction };
  const policy = bucket({ rate: perMs * 1000 * fraction, burst, ...debt });
  return { policy, perMs: perMs * fraction, burst, reserveLevel: burst * reserve };
}

function partOfWindow(policy: Policy, group: GroupTerms): GroupPart {
  const { limit, perMs } = policy.terms as WindowTerms;
  const part = Math.floor(limit * group.fraction + EPSILON);
  requireOne(part, 'window.limit', limit, group);
  const terms = { perMs: part / perMs, burst: part, reserveLevel: part * group.reserve };
  return { policy: windowOfGroup(policy, part, group.deadlineMs), ...terms };
}

/** The group's fraction of the attempts. Nothing is borrowed: a lent attempt would be a failure of the lender. */
function partOfLockout(policy: Policy, group: GroupTerms): GroupPart {
  const { after } = policy.terms as LockoutTerms;
  const part = Math.floor(after * group.fraction + EPSILON);
  requireOne(part, 'lockout.after', after, group);
  const terms = { perMs: 0, burst: part, reserveLevel: 0, isFixed: true };
  return { policy: lockoutOfGroup(policy, part), ...terms };
}

function requireOne(part: number, field: string, all: number, group: GroupTerms): void {
  if (part >= 1) return;
  const least = Math.ceil(1 / group.fraction);
  const expected = `at least ${least}, so that group ${group.self} has one token of it`;
  throw new ConfigError(`limit.${field}`, expected, all);
}
