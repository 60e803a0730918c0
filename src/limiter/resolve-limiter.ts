/**
 * The limiter behind an adapter: the one given as `limiter`, or a new one made from the options that are the limiter's.
 *
 * An adapter takes its own options and a limiter's in one object. A misspelt option could belong to either, so the error
 * lists both and suggests the closest of all.
 */

import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import { LIMIT_KINDS } from '../policies/limit.ts';
import type { RemoteLimiter } from './async-limiter.ts';
import { type LimiterOptions, limiter } from './limiter.ts';
import type { Limiter } from './sync-limiter.ts';

/** Complete by its type: an option added to a limiter is missed here by the compiler. */
const LIMITER_OPTIONS: Readonly<Record<keyof LimiterOptions | 'limiter', true>> = {
  limit: true,
  limiter: true,
  name: true,
  queue: true,
  backend: true,
  permitTimeout: true,
  maxCooldown: true,
  maxKeys: true,
  clock: true,
  random: true,
};

/** @throws {ConfigError} for an unknown option, for a limiter beside options of one, and for an invalid limit. */
export function resolveLimiter(
  options: object,
  adapterOptions: readonly string[],
): Limiter | RemoteLimiter {
  const rest: Record<string, unknown> = { ...options };
  for (const name of adapterOptions) delete rest[name];
  const unknown = Object.keys(rest).find((name) => !isLimiterOption(name));
  if (unknown !== undefined) {
    const known = [...Object.keys(LIMITER_OPTIONS), ...adapterOptions];
    throw ConfigError.unknownName(new OptionReader('', rest).pathOf(unknown), unknown, known);
  }
  if (!('limiter' in rest)) return limiter(rest as unknown as LimiterOptions);
  const { limiter: given, ...others } = rest;
  const [extra] = Object.keys(others);
  if (extra !== undefined) throw new ConfigError(extra, 'left out when a limiter is given', extra);
  if (typeof (given as Limiter | null)?.acquire === 'function') return given as Limiter;
  throw new ConfigError('limiter', 'a limiter', given);
}

/** A rule beside `limit` instead of in it is for `limiter` to report. */
const isLimiterOption = (name: string): boolean =>
  Object.hasOwn(LIMITER_OPTIONS, name) || LIMIT_KINDS.includes(name);
