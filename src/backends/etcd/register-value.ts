/**
 * What a register holds: the numbers of one key on the clock of whoever wrote them, and when that was sent.
 *
 *     { "by": "3f9a…", "at": 1763219283000.5, "numbers": [1763219289000.5] }
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';

export interface RegisterValue {
  /** Whose clock it is. */
  readonly by: string;
  /** When it was sent, or a moment before. */
  readonly at: Millis;
  readonly numbers: readonly number[];
}

export const encodeValue = (value: RegisterValue): string => JSON.stringify(value);

/** Whatever a key holds that is not of this kind is somebody else's, and stays. */
export function decodeValue(text: string, width: number, key: string): RegisterValue {
  const value = tryParseJson(text);
  if (isRecord(value) && typeof value.by === 'string' && Number.isFinite(value.at)) {
    const { numbers } = value;
    const isOurs = Array.isArray(numbers) && numbers.length === width;
    if (isOurs && numbers.every(Number.isFinite)) return value as unknown as RegisterValue;
  }
  throw new UnavailableError(`the register ${key}`, 'it holds something else');
}
