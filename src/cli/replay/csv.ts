/**
 * Logs with columns: comma, semicolon, tab or vertical bar, and quotes as in RFC 4180. A record is one line.
 *
 * The first line is a header if none of its columns is a time. Columns have the names of the header, or numbers from 1.
 */

import { suggestName } from '../../core/suggestion.ts';
import { CommandError } from '../framework/command.ts';
import { type Field, type LineFormat, RangeFormat, TIME_NAMES } from './line-format.ts';
import { TimeReader } from './times.ts';

const QUOTE = 34;

const DELIMITERS = [',', ';', '\t', '|'];

/** Further columns are ignored. */
const MAX_COLUMNS = 1000;

/** A smaller number is no time if the header does not say so: Unix seconds of 1973. */
const MIN_UNIX_TIME = 1e8;

/** The delimiter that a line has most of; undefined if it has none. */
export function delimiterOf(line: string): string | undefined {
  const counts = DELIMITERS.map((delimiter) => line.split(delimiter).length - 1);
  const most = Math.max(...counts);
  return most > 0 ? DELIMITERS[counts.indexOf(most)] : undefined;
}

export class CsvFormat extends RangeFormat implements LineFormat {
  readonly name = 'csv';
  problem = '';
  /** True if the first line is a header. */
  readonly hasHeader: boolean;
  readonly #delimiter: number;
  readonly #time: TimeReader;
  readonly #header: readonly string[];
  readonly #timeColumn: number;
  #columns = 0;

  /** `first` is the first line. */
  constructor(first: Buffer, timeName: string | undefined, zoneMinutes: number) {
    super(MAX_COLUMNS);
    this.#delimiter = (delimiterOf(first.toString('latin1')) ?? ',').charCodeAt(0);
    this.#time = new TimeReader(zoneMinutes);
    this.#split(first, 0, first.length);
    const cells = Array.from({ length: this.#columns }, (_, n) => this.textOf(n) ?? '');
    const timeAt = cells.findIndex((text) => this.#isTime(text));
    this.hasHeader = timeAt < 0;
    this.#header = this.hasHeader ? cells.map((name) => name.trim()) : [];
    const named = TIME_NAMES.find((name) => this.#indexOf(name) >= 0);
    this.#timeColumn =
      timeName === undefined
        ? this.hasHeader
          ? this.#requireColumn(
              named ?? TIME_NAMES[0],
              'a column with the time; name it with --time',
            )
          : timeAt
        : this.#requireColumn(timeName);
  }

  get at(): number {
    return this.#time.at;
  }

  get zoneMinutes(): number {
    return this.#time.zoneMinutes;
  }

  read(bytes: Buffer, from: number, to: number): boolean {
    if (!this.#split(bytes, from, to)) {
      this.problem = 'expected a quote at the end of a column (a record is one line)';
      return false;
    }
    if (this.#time.read(this.textOf(this.#timeColumn))) return true;
    this.problem = `expected a time in column ${this.#timeColumn + 1}`;
    return false;
  }

  field(name: string): Field {
    const range = this.#requireColumn(name);
    return { range, text: () => this.textOf(range) };
  }

  fieldNames(): readonly string[] {
    const names = Array.from({ length: this.#columns }, (_, n) => this.#header[n] ?? `${n + 1}`);
    return names.filter((_, n) => this.textOf(n) !== undefined);
  }

  /** Doubled quotes stand for one. */
  override textOf(range: number): string | undefined {
    const text = super.textOf(range);
    const isQuoted = text !== undefined && this.bytes[this.starts[range] - 1] === QUOTE;
    return isQuoted ? text.replaceAll('""', '"') : text;
  }

  #isTime(text: string): boolean {
    const isNumber = Number.isFinite(Number(text));
    return (!isNumber || Number(text) >= MIN_UNIX_TIME) && this.#time.read(text);
  }

  #indexOf(name: string): number {
    const column = Number(name);
    if (Number.isInteger(column) && column >= 1 && column <= MAX_COLUMNS) return column - 1;
    return this.#header.indexOf(name);
  }

  #requireColumn(name: string, expected = 'a column of the file'): number {
    const index = this.#indexOf(name);
    if (index >= 0 && index < this.#columns) return index;
    if (!this.hasHeader)
      throw new CommandError(
        `expected a column from 1 to ${this.#columns}, because the file has no header, got "${name}"`,
      );
    const hint = suggestName(name, this.#header);
    throw new CommandError(
      `expected ${expected}: ${this.#header.join(', ')}, got "${name}"${hint ? `; ${hint}` : ''}`,
    );
  }

  /** Finds the columns; false if a quote is open at the end. */
  #split(bytes: Buffer, from: number, to: number): boolean {
    this.bytes = bytes;
    const { starts, ends } = this;
    const delimiter = this.#delimiter;
    const before = this.#columns;
    let count = 0;
    let n = from;
    for (;;) {
      const isQuoted = n < to && bytes[n] === QUOTE;
      const start = isQuoted ? ++n : n;
      if (isQuoted) {
        while (n < to && (bytes[n] !== QUOTE || (n + 1 < to && bytes[n + 1] === QUOTE)))
          n += bytes[n] === QUOTE ? 2 : 1;
        if (n >= to) return false;
      } else while (n < to && bytes[n] !== delimiter) n++;
      if (count < MAX_COLUMNS) {
        starts[count] = start;
        ends[count++] = n > start ? n : start - 1;
      }
      if (isQuoted) while (n < to && bytes[n] !== delimiter) n++;
      if (n >= to) break;
      n++;
    }
    for (let unused = count; unused < before; unused++) ends[unused] = starts[unused] - 1;
    this.#columns = Math.max(before, count);
    return true;
  }
}
