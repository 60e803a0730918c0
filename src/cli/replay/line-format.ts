/**
 * A log format reads one line: its time, and the fields that a key is made of.
 *
 * Lines are bytes. A format that finds its fields in them (`RangeFormat`) decodes no string for a key that is one
 * field. All texts are binary keys: one character per byte.
 */

import type { Millis } from '../../core/clock.ts';

/** A field of the current line. */
export interface Field {
  /** Its text as a binary key; undefined if the line has none. */
  text(): string | undefined;
  /** The number of its range in a `RangeFormat`. */
  readonly range?: number;
}

export interface LineFormat {
  readonly name: FormatName;
  /** Reads a line; false if that is not possible, and `problem` says why. */
  read(bytes: Buffer, from: number, to: number): boolean;
  readonly problem: string;
  /** The time of the line, and its zone. */
  readonly at: Millis;
  readonly zoneMinutes: number;
  /** @throws {CommandError} if the format has no such field. */
  field(name: string): Field;
  /** The fields of the current line, for the error that no line has the key. */
  fieldNames(): readonly string[];
}

export const FORMAT_NAMES = ['combined', 'json', 'csv'] as const;
export type FormatName = (typeof FORMAT_NAMES)[number];

/** Fields as ranges of the line's bytes. */
export abstract class RangeFormat {
  bytes: Buffer = Buffer.alloc(0);
  readonly starts: Int32Array;
  /** Below its start: the line has no such field. */
  readonly ends: Int32Array;

  constructor(fields: number) {
    this.starts = new Int32Array(fields);
    this.ends = new Int32Array(fields);
  }

  textOf(range: number): string | undefined {
    const [from, to] = [this.starts[range], this.ends[range]];
    return to < from ? undefined : this.bytes.toString('latin1', from, to);
  }
}

/** Names of a time, in the order in which they are looked for. */
export const TIME_NAMES: readonly string[] = [
  'time',
  'timestamp',
  '@timestamp',
  'ts',
  'time_iso8601',
  'msec',
  'time_local',
  'datetime',
  'date',
  'StartUTC',
];
