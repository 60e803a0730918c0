/**
 * What a register holds: the numbers of one key on the clock of whoever wrote them, and when that was sent.
 *
 *     { "by": "3f9a…", "at": 1763219283000.5, "numbers": [1763219289000.5] }
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { jsonIn } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';

export interface Record {
  /** Whose clock it is. */
  readonly by: string;
  /** When it was sent, or a moment before. */
  readonly at: Millis;
  readonly numbers: readonly number[];
}

export const textOf = (record: Record): string => JSON.stringify(record);

/** Whatever a key holds that is not of this kind is somebody else's, and stays. */
export function recordOf(text: string, width: number, key: string): Record {
  const value = jsonIn(text);
  if (isRecord(value) && typeof value.by === 'string' && Number.isFinite(value.at)) {
    const { numbers } = value;
    const isOurs = Array.isArray(numbers) && numbers.length === width;
    if (isOurs && numbers.every(Number.isFinite)) return value as unknown as Record;
  }
  throw new UnavailableError(`the register ${key}`, 'it holds something else');
}
