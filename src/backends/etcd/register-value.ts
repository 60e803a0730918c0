/**
 * The value of a register: the state of one key on the clock of the process that wrote it, and when it was sent.
 *
 *     { "by": "3f9a…", "at": 1763219283000.5, "numbers": [1763219289000.5] }
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';

export interface RegisterValue {
  readonly by: string;
  /** When it was sent, or a little before. */
  readonly at: Millis;
  readonly numbers: readonly number[];
  /** Id of the last change of the limit's numbers that converted it. */
  readonly changeId?: string | undefined;
}

export const encodeValue = (value: RegisterValue): string => JSON.stringify(value);

/** A value of any other form is foreign and is not overwritten. */
export function decodeValue(text: string, width: number, key: string): RegisterValue {
  const value = tryParseJson(text);
  if (isRecord(value) && typeof value.by === 'string' && Number.isFinite(value.at)) {
    const { numbers } = value;
    const isOurs = Array.isArray(numbers) && numbers.length === width;
    if (isOurs && numbers.every(Number.isFinite)) return value as unknown as RegisterValue;
  }
  throw new UnavailableError(`the register ${key}`, 'it holds a foreign value');
}
