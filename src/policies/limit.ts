/**
 * How a limit is written, everywhere: one key that names the rule, and its options.
 *
 *     { bucket: { rate: '100/s', burst: 20 } }
 *     { all: [{ spacing: { every: '6s' } }, { adaptive: { max: 50 } }] }
 *
 * The library, a configuration file and the command line all read this, and nothing else.
 */

import { ConfigError } from '../core/errors.ts';
import { OptionReader, readEach } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { type AdaptiveOptions, adaptive } from './adaptive.ts';
import { all } from './all.ts';
import { type BucketOptions, bucket } from './bucket.ts';
import { type BusyOptions, busy } from './busy.ts';
import { withPartitions } from './partitions.ts';
import type { Policy } from './policy.ts';
import { type RampOptions, ramp } from './ramp.ts';
import { type SpacingOptions, spacing } from './spacing.ts';
import { type WindowOptions, window } from './window.ts';

/** A rule with its options, spelled with one key. */
export type Limit =
  | { readonly bucket: BucketOptions }
  | { readonly spacing: SpacingOptions }
  | { readonly window: WindowOptions }
  | { readonly ramp: RampOptions }
  | { readonly adaptive: AdaptiveOptions }
  | { readonly busy: BusyOptions }
  | { readonly all: readonly Limit[] };

/** How deep `all` may stand within `all`: more is a mistake, or an attack. */
const MAX_DEPTH = 8;

type PolicyFactory = (options: unknown, path: string, random: Random, depth: number) => Policy;

/** The one list of rules there are. Each maker checks what it is given, whatever its type. */
const POLICY_FACTORIES: Readonly<Record<string, PolicyFactory>> = {
  bucket: (options, path) => bucket(options as BucketOptions, path),
  spacing: (options, path) => spacing(options as SpacingOptions, path),
  window: (options, path) => window(options as WindowOptions, path),
  ramp: (options, path) => ramp(options as RampOptions, path),
  adaptive: (options, path, random) => {
    const policy = adaptive(options as AdaptiveOptions, random, path);
    const { partitions } = options as AdaptiveOptions;
    return partitions === undefined
      ? policy
      : withPartitions(policy, partitions, `${path}.partitions`);
  },
  busy: (options, path) => busy(options as BusyOptions, path),
  all: (parts, path, random, depth) => {
    if (!Array.isArray(parts)) throw new ConfigError(path, 'a list of limits', parts);
    if (depth > MAX_DEPTH) throw new ConfigError(path, `at most ${MAX_DEPTH} deep`, parts);
    return all(
      readEach(parts, (part, n) => createPolicy(part, random, `${path}[${n}]`, depth + 1)),
      path,
    );
  },
};

/** What a limit can be. */
export const LIMIT_KINDS: readonly string[] = Object.keys(POLICY_FACTORIES);

/** Makes the rule that `limit` spells. @throws {ConfigError} naming the field that is wrong. */
export function createPolicy(limit: unknown, random: Random, path = 'limit', depth = 1): Policy {
  const kinds = LIMIT_KINDS.join(', ');
  const expected = `an object with one key out of ${kinds}`;
  const [kind, ...others] = new OptionReader(path, limit, expected).names();
  if (kind === undefined || others.length > 0 || !Object.hasOwn(POLICY_FACTORIES, kind)) {
    throw new ConfigError(path, expected, limit);
  }
  return POLICY_FACTORIES[kind](
    (limit as Record<string, unknown>)[kind],
    `${path}.${kind}`,
    random,
    depth,
  );
}
