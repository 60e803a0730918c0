/**
 * How a limit is written, everywhere: one key that names the rule, and its options.
 *
 *     { bucket: { rate: '100/s', burst: 20 } }
 *     { all: [{ spacing: { every: '6s' } }, { adaptive: { max: 50 } }] }
 *
 * The library, a configuration file and the command line all read this, and nothing else.
 */

import { ConfigError } from '../core/errors.ts';
import { Fields, readEach } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { type AdaptiveOptions, adaptive } from './adaptive.ts';
import { all } from './all.ts';
import { type BucketOptions, bucket } from './bucket.ts';
import { type BusyOptions, busy } from './busy.ts';
import { partitioned } from './partitions.ts';
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
const DEPTH_MAX = 8;

type Maker = (options: unknown, path: string, random: Random, depth: number) => Policy;

/** The one list of rules there are. Each maker checks what it is given, whatever its type. */
const MAKERS: Readonly<Record<string, Maker>> = {
  bucket: (options, path) => bucket(options as BucketOptions, path),
  spacing: (options, path) => spacing(options as SpacingOptions, path),
  window: (options, path) => window(options as WindowOptions, path),
  ramp: (options, path) => ramp(options as RampOptions, path),
  adaptive: (options, path, random) => {
    const policy = adaptive(options as AdaptiveOptions, random, path);
    const { partitions } = options as AdaptiveOptions;
    return partitions === undefined
      ? policy
      : partitioned(policy, partitions, `${path}.partitions`);
  },
  busy: (options, path) => busy(options as BusyOptions, path),
  all: (parts, path, random, depth) => {
    if (!Array.isArray(parts)) throw new ConfigError(path, 'a list of limits', parts);
    if (depth > DEPTH_MAX) throw new ConfigError(path, `at most ${DEPTH_MAX} deep`, parts);
    return all(
      readEach(parts, (part, n) => policyOf(part, random, `${path}[${n}]`, depth + 1)),
      path,
    );
  },
};

/** What a limit can be. */
export const LIMIT_KINDS: readonly string[] = Object.keys(MAKERS);

/** Makes the rule that `limit` spells. @throws {ConfigError} naming the field that is wrong. */
export function policyOf(limit: unknown, random: Random, path = 'limit', depth = 1): Policy {
  const kinds = LIMIT_KINDS.join(', ');
  const expected = `an object with one key out of ${kinds}`;
  const [kind, ...others] = new Fields(path, limit, expected).names();
  if (kind === undefined || others.length > 0 || !Object.hasOwn(MAKERS, kind)) {
    throw new ConfigError(path, expected, limit);
  }
  return MAKERS[kind]((limit as Record<string, unknown>)[kind], `${path}.${kind}`, random, depth);
}
