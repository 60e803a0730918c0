/**
 * The limiter behind `throttle` or an adapter: the one given as `limiter`, or a new one made from the options.
 *
 * Their own options and a limiter's are in one object. A misspelt option could belong to either, so the error
 * lists both and suggests the closest of all.
 */

import { ConfigError } from '../core/errors.ts';
import { suggestName } from '../core/suggestion.ts';
import { type AnyLimiterInternals, internalsOf } from './internals.ts';
import { createLimiter, type LimiterOptions } from './limiter.ts';

/** @throws {ConfigError} for an unknown option, for a limiter beside options of one, and for an invalid limit. */
export function resolveLimiter(
  options: object,
  adapterOptions: readonly string[],
): AnyLimiterInternals {
  const rest: Record<string, unknown> = { ...options };
  for (const name of adapterOptions) delete rest[name];
  const alsoKnown = ['limiter', ...adapterOptions];
  if (!('limiter' in rest)) return createLimiter(rest as unknown as LimiterOptions, { alsoKnown });
  const { limiter, ...others } = rest;
  const [extra] = Object.keys(others);
  if (extra === undefined) return internalsOf(limiter);
  const hint = suggestName(extra, adapterOptions);
  throw new ConfigError(extra, 'left out when a limiter is given', others[extra], [], hint);
}
