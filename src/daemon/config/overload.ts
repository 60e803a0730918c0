import type { Millis } from '../../core/clock.ts';
import { OptionReader } from '../../core/options.ts';

/** A check that is shed is allowed (`open`), or denied. */
export const FAIL_MODES = ['open', 'closed'] as const;
export type FailMode = (typeof FAIL_MODES)[number];

export interface OverloadConfig {
  /** How long a check may wait in this process before it is shed; Infinity: for ever. */
  readonly maxAgeMs: Millis;
  /** True: limits without their own fail mode fail open. */
  readonly isOpen: boolean;
}

/** Clients wait less. But 100 ms shed up to 45 % of few checks where many processes share the processors. */
const DEFAULT_MAX_AGE_MS: Millis = 250;

export function readOverload(fields: OptionReader): OverloadConfig {
  const value = fields.get('overload') ?? {};
  const isOff = value === false || value === 'off';
  const reader = OptionReader.collecting('overload', isOff ? { maxAge: Infinity } : value);
  const maxAgeMs = reader.durationOrInfinity('maxAge', DEFAULT_MAX_AGE_MS);
  const isOpen = reader.oneOf('fail', FAIL_MODES, 'open') === 'open';
  reader.finish();
  return { maxAgeMs, isOpen };
}
