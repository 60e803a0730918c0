/**
 * How a limit is written: one key that names the policy, and its options.
 *
 *     { bucket: { rate: '100/s', burst: 20 } }
 *     { all: [{ spacing: { every: '6s' } }, { concurrency: 50 }] }
 *
 * The library, configuration files and the command line all read this form and no other.
 */

import { ConfigError } from '../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { suggestName } from '../core/suggestion.ts';
import { type AdaptiveOptions, adaptive } from './adaptive.ts';
import { all } from './all.ts';
import { type BucketOptions, bucket } from './bucket.ts';
import { type BusyOptions, busy } from './busy.ts';
import { type ConcurrencyOptions, concurrency } from './concurrency.ts';
import { type LockoutOptions, lockout } from './lockout.ts';
import type { Policy } from './policy.ts';
import { type QuotaOptions, quota } from './quota.ts';
import { type RampOptions, ramp } from './ramp.ts';
import { type SpacingOptions, spacing } from './spacing.ts';
import { type WindowOptions, window } from './window.ts';

/** The options of each kind of limit. */
export interface LimitKinds {
  /** Token bucket: a long-term rate, and a burst after a quiet period. */
  readonly bucket: BucketOptions;
  /** A minimum interval between calls (GCRA without burst), with reservations ahead. */
  readonly spacing: SpacingOptions;
  /** Sliding window: at most so many calls in any span of time. */
  readonly window: WindowOptions;
  /** Fixed window on the calendar: so many calls a minute, hour, day or month. */
  readonly quota: QuotaOptions;
  /** A rate that grows from a minimum to a maximum. */
  readonly ramp: RampOptions;
  /** A fixed number of calls in flight. */
  readonly concurrency: number | ConcurrencyOptions;
  /** Adaptive concurrency: a learnt number of calls in flight. */
  readonly adaptive: AdaptiveOptions;
  /** A client-side rate that halves on busy replies and recovers. */
  readonly busy: BusyOptions;
  /** Locks a key after too many failed attempts or refusals. */
  readonly lockout: LockoutOptions;
  /** Several limits at once: every one must allow, and nothing is charged if one refuses. */
  readonly all: readonly Limit[];
}

/** One kind, and none of the others. */
type OnlyKind<Kind extends keyof LimitKinds> = Pick<LimitKinds, Kind> & {
  readonly [other in Exclude<keyof LimitKinds, Kind>]?: undefined;
};

/** A policy with its options, written with one key. */
export type Limit = { [Kind in keyof LimitKinds]: OnlyKind<Kind> }[keyof LimitKinds];

/** How deep `all` may be nested. */
const MAX_DEPTH = 8;

type PolicyFactory = (options: unknown, path: string, random: Random, depth: number) => Policy;

/** All policies. Each factory validates its options. */
const POLICY_FACTORIES: Readonly<Record<string, PolicyFactory>> = {
  bucket: (options, path) => bucket(options as BucketOptions, path),
  spacing: (options, path) => spacing(options as SpacingOptions, path),
  window: (options, path) => window(options as WindowOptions, path),
  quota: (options, path) => quota(options as QuotaOptions, path),
  ramp: (options, path) => ramp(options as RampOptions, path),
  concurrency: (options, path, random) => concurrency(options as ConcurrencyOptions, random, path),
  adaptive: (options, path, random) => adaptive(options as AdaptiveOptions, random, path),
  busy: (options, path) => busy(options as BusyOptions, path),
  lockout: (options, path, _random, depth) => {
    const policy = lockout(options as LockoutOptions, path);
    if (depth > 1 || !policy.chain?.recordRefusal) return policy;
    const expected =
      'failure, or the lock-out in an `all` beside the rule whose refusals it counts';
    throw new ConfigError(`${path}.on`, expected, 'refusal');
  },
  all: (limits, path, random, depth) => {
    if (!Array.isArray(limits)) throw new ConfigError(path, 'a list of limits', limits);
    if (depth > MAX_DEPTH) throw new ConfigError(path, `at most ${MAX_DEPTH} deep`, limits);
    return all(
      readEach(limits, (limit, n) => createPolicy(limit, random, `${path}[${n}]`, depth + 1)),
      path,
    );
  },
};

export const LIMIT_KINDS: readonly string[] = Object.keys(POLICY_FACTORIES);

/** The rule that is meant by an option which stands where a rule should: `{ rate: '10/s' }`. */
export const RULE_OF_OPTION: ReadonlyMap<string | undefined, string> = new Map([
  ['rate', 'bucket'],
  ['burst', 'bucket'],
  ['every', 'spacing'],
]);

/** A rule as a limit is written. */
export interface WrittenRule {
  readonly kind: string;
  readonly options: unknown;
  readonly path: string;
}

/** All rules of a valid limit, those within `all` included. */
export function writtenRules(limit: unknown, path: string): WrittenRule[] {
  if (!isRecord(limit)) return [];
  return Object.entries(limit).flatMap(([kind, options]) => {
    const at = `${path}.${kind}`;
    if (kind === 'all' && Array.isArray(options))
      return options.flatMap((one, n) => writtenRules(one, `${at}[${n}]`));
    return options === undefined ? [] : [{ kind, options, path: at }];
  });
}

export const hintForRule = (rule: string, option = ''): string =>
  `did you mean \`${rule}: { ${option}: … }\`?`;

/** The limits that policies were created from. */
const sources = new WeakMap<Policy, Limit>();

/** The limit that `createPolicy` made a policy from; undefined for a policy that was made in another way. */
export const limitOf = (policy: Policy): Limit | undefined => sources.get(policy);

/** Creates the policy that `limit` describes. @throws {ConfigError} naming the field that is wrong. */
export function createPolicy(limit: unknown, random: Random, path = 'limit', depth = 1): Policy {
  const kinds = LIMIT_KINDS.join(', ');
  const expected = `an object with one key out of ${kinds}`;
  const names = new OptionReader(path, limit, expected).names();
  // A kind that is undefined is absent beside another, and alone it is the mistake.
  const [kind, ...others] = names.length > 0 ? names : Object.keys(limit as object);
  if (kind === undefined || others.length > 0 || !Object.hasOwn(POLICY_FACTORIES, kind)) {
    const rule = RULE_OF_OPTION.get(kind);
    const closest = others.length === 0 ? suggestName(kind, LIMIT_KINDS) : undefined;
    const hint = rule === undefined ? closest : hintForRule(rule, kind);
    throw new ConfigError(path, expected, limit, [], hint);
  }
  const options = (limit as Record<string, unknown>)[kind];
  const policy = POLICY_FACTORIES[kind](options, `${path}.${kind}`, random, depth);
  sources.set(policy, limit as Limit);
  return policy;
}
