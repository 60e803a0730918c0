import type { Millis } from '../../core/clock.ts';
import { parseDuration } from '../../core/duration.ts';
import type { OptionReader } from '../../core/options.ts';

export const MAX_DURATION_MS: Millis = 31 * 86_400_000;

/** A duration above 0 and at most `MAX_DURATION_MS`. */
export function boundedDuration(fields: OptionReader, name: string, fallback?: Millis): Millis {
  const ms = fields.duration(name, fallback);
  if (ms > MAX_DURATION_MS) fields.report(name, 'at most 31d');
  return ms;
}

/** A duration that may be 0. */
export function readMillis(fields: OptionReader, name: string, fallback?: Millis): Millis {
  const ms = parseDuration(fields.valueOr(name, fallback));
  if (ms !== undefined && ms >= 0 && ms <= MAX_DURATION_MS) return ms;
  fields.report(name, 'a duration such as "200ms" or "10s", at most 31d');
  return Number.NaN;
}

/** `from` and `to`, times within the scenario. */
export function readSpan(
  fields: OptionReader,
  durationMs: Millis,
): { readonly fromMs: Millis; readonly toMs: Millis } {
  const fromMs = readMillis(fields, 'from', 0);
  const toMs = readMillis(fields, 'to', durationMs);
  if (toMs > durationMs) fields.report('to', `at most the duration, ${durationMs / 1000}s`);
  if (fromMs >= toMs) fields.report('from', 'before `to`');
  return { fromMs, toMs };
}
