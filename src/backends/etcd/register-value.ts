/**
 * The value of a register: the state of one key on the clock of the process that wrote it, and its send time.
 *
 *     { "by": "3f9a…", "at": 1763219283000.5, "numbers": [1763219289000.5] }
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';

export interface RegisterValue {
  readonly by: string;
  /** Send time, or slightly earlier. */
  readonly at: Millis;
  readonly numbers: readonly number[];
  /** Id of the last limit change that converted it. */
  readonly changeId?: string | undefined;
}

export const encodeValue = (value: RegisterValue): string => JSON.stringify(value);

/** Decodes a value. @throws {UnavailableError} for any other form: it is foreign and must not be overwritten. */
export function decodeValue(text: string, width: number, key: string): RegisterValue {
  const value = tryParseJson(text);
  if (isRecord(value) && typeof value.by === 'string' && Number.isFinite(value.at)) {
    const { numbers } = value;
    const isOurs = Array.isArray(numbers) && numbers.length === width;
    if (isOurs && numbers.every(Number.isFinite)) return value as unknown as RegisterValue;
  }
  throw new UnavailableError(`the register ${key}`, 'it holds a foreign value');
}
