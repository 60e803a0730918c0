/**
 * Finds durations that were probably meant in seconds: `per: 60` is 60 ms, because a bare number is milliseconds.
 *
 * Only options whose sensible values are seconds and more are searched, and only numbers below 1,000 are found. Options
 * such as `every` or `deadline` are often shorter than a second.
 */

import { ConfigError } from '../core/errors.ts';
import { isRecord } from '../core/options.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import { type WrittenRule, writtenRules } from '../policies/limit.ts';

export { writtenRules } from '../policies/limit.ts';

/** Options that are searched, by the kind of limit. */
const LONG_OPTIONS: Readonly<Record<string, readonly string[]>> = {
  window: ['per'],
  quota: ['per'],
  ramp: ['over', 'coolDown', 'resumeFor'],
  lockout: ['within', 'lock', 'forget'],
};

/** Limiter options that are searched. */
const LONG_LIMITER_OPTIONS = ['permitTimeout', 'idFor', 'maxCooldown'];

const SHORTEST_MS = 1000;

interface BareDuration {
  /** The option without the limit's path, such as `window.per`. */
  readonly option: string;
  readonly error: ConfigError;
}

/** Finds bare durations in valid limiter options. `path` replaces the root of the limit. */
export function bareDurations(options: object, path = 'limit'): readonly BareDuration[] {
  const { limit, ...others } = options as Record<string, unknown>;
  const own = path === 'limit' ? '' : `${path}.`;
  return [
    ...writtenRules(limit, path).flatMap(inRule),
    ...LONG_LIMITER_OPTIONS.flatMap((name) => inOption(name, others[name], own + name)),
  ];
}

function inRule({ kind, options, path }: WrittenRule): readonly BareDuration[] {
  const names = Object.hasOwn(LONG_OPTIONS, kind) && isRecord(options) ? LONG_OPTIONS[kind] : [];
  return names.flatMap((name) =>
    inOption(`${kind}.${name}`, (options as Record<string, unknown>)[name], `${path}.${name}`),
  );
}

function inOption(option: string, value: unknown, path: string): readonly BareDuration[] {
  if (Array.isArray(value))
    return value.flatMap((one, n) => inOption(option, one, `${path}[${n}]`));
  if (typeof value !== 'number' || value >= SHORTEST_MS) return [];
  const hint = `a bare number is milliseconds: write "${value}s" or "${value}ms"`;
  return [{ option, error: new ConfigError(path, 'a duration with a unit', value, [], hint) }];
}

/** Warns once per option. */
export function warnOfBareDurations(options: object): void {
  for (const { option, error } of bareDurations(options))
    emitProcessWarning('BARE_DURATION', error.message, option);
}

/** @throws {ConfigError} that lists every bare duration. */
export function requireUnits(options: object, path: string): void {
  const [first, ...rest] = bareDurations(options, path).map(({ error }) => error);
  if (first) throw ConfigError.merge([first, ...rest]);
}
