/**
 * Returns the limiter of `throttle` or an adapter: the option `limiter`, or a new one made from the options. An unknown
 * option could belong to either, so the error lists the options of both.
 */

import { ConfigError } from '../core/errors.ts';
import { presentNames } from '../core/options.ts';
import { suggestName } from '../core/suggestion.ts';
import { type AnyLimiterInternals, internalsOf } from './internals.ts';
import { createLimiter } from './limiter.ts';

/** @throws {ConfigError} for an unknown option, for a limiter beside options of one, and for an invalid limit. */
export function resolveLimiter(
  options: object,
  adapterOptions: readonly string[],
): AnyLimiterInternals {
  const rest: Record<string, unknown> = { ...options };
  for (const name of adapterOptions) delete rest[name];
  const alsoKnown = ['limiter', ...adapterOptions];
  const { limiter, ...others } = rest;
  const isGiven = 'limiter' in rest && rest.limit === undefined; // also if it is undefined, by mistake
  if (limiter === undefined && !isGiven) return createLimiter(others as never, { alsoKnown });
  const [extra] = presentNames(others);
  if (extra === undefined) return internalsOf(limiter);
  const hint = suggestName(extra, adapterOptions);
  throw new ConfigError(extra, 'left out when a limiter is given', others[extra], [], hint);
}
