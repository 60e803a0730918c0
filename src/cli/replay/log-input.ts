/**
 *     bytes ──▶ lines ──▶ format: time, fields ──▶ conditions ──▶ key, cost
 *
 * Lines without a call are counted: blank lines, lines that cannot be read, lines that a condition leaves out, lines
 * without a key.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { toKeyText } from '../../daemon/keys/binary-key.ts';
import { CommandError } from '../framework/command.ts';
import { LogBytes } from './chunks.ts';
import { CombinedFormat } from './combined.ts';
import { type Condition, compileConditions } from './condition.ts';
import { CsvFormat, delimiterOf } from './csv.ts';
import { JsonFormat } from './json-lines.ts';
import { KeyExpression, type parseTemplate } from './key-expression.ts';
import type { KeyTable } from './key-table.ts';
import type { FormatName, LineFormat } from './line-format.ts';
import { LineSplitter, MAX_LINE_BYTES } from './line-splitter.ts';

/** How lines are read; the same for all logs. */
export interface LineOptions {
  /** Undefined: found from the first lines. */
  readonly format: FormatName | undefined;
  readonly time: string | undefined;
  readonly zoneMinutes: number;
  readonly key: ReturnType<typeof parseTemplate>;
  readonly cost: string | undefined;
  readonly conditions: readonly Condition[];
}

/** Counts of lines and calls, over all logs. */
export class LineCounts {
  lines = 0;
  blank = 0;
  bad = 0;
  leftOut = 0;
  keyless = 0;
  /** The fields of the first line without a key. */
  keylessFields: readonly string[] = [];
  /** Calls of keys beyond the bound of the key table. */
  furtherKeys = 0;
  /** The first lines that could not be read: where, and why. */
  readonly problems: string[] = [];

  addKeyless(format: LineFormat): void {
    if (this.keyless++ === 0) this.keylessFields = format.fieldNames().slice(0, MAX_SHOWN_FIELDS);
  }

  addBad(where: string, problem: string): void {
    this.bad++;
    if (this.problems.length < MAX_SHOWN_PROBLEMS) this.problems.push(`${where}: ${problem}`);
  }
}

const MAX_SHOWN_PROBLEMS = 5;
const MAX_SHOWN_FIELDS = 30;
const MAX_SHOWN_CHARS = 60;

/** Lines that are searched for a known format. */
const MAX_DETECTION_LINES = 20;

const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf]);

export class LogInput {
  readonly bytes: LogBytes;
  /** The time of the current call. */
  at: Millis = 0;
  cost = 1;
  /** Number of its key. */
  id = 0;
  readonly #options: LineOptions;
  readonly #keys: KeyTable;
  readonly #counts: LineCounts;
  readonly #chunks: AsyncGenerator<Buffer>;
  readonly #splitter = new LineSplitter();
  #isEnded = false;
  #reader: LineReader | undefined;

  constructor(path: string, options: LineOptions, keys: KeyTable, counts: LineCounts) {
    this.bytes = new LogBytes(path);
    this.#options = options;
    this.#keys = keys;
    this.#counts = counts;
    this.#chunks = this.bytes[Symbol.asyncIterator]();
  }

  get zoneMinutes(): number {
    return this.#reader?.format.zoneMinutes ?? 0;
  }

  /** Reads more bytes. False if there are none. */
  async fill(): Promise<boolean> {
    if (this.#isEnded) return false;
    const { value, done } = await this.#chunks.next();
    if (!done) {
      this.#splitter.push(value);
      return true;
    }
    this.#isEnded = true;
    this.#splitter.end();
    const { damage } = this.bytes;
    if (damage !== undefined) {
      this.#counts.lines++;
      this.#counts.addBad(`${this.bytes.name}:${this.#splitter.line + 1}`, damage);
    }
    return true;
  }

  /** Stops reading. */
  async close(): Promise<void> {
    await this.#chunks.return(undefined);
  }

  /** Moves to the next call; false if more bytes are needed. */
  advance(): boolean {
    const splitter = this.#splitter;
    const counts = this.#counts;
    while (splitter.next()) {
      if (splitter.line === 1) this.#skipByteOrderMark();
      counts.lines++;
      const { bytes, from, to } = splitter;
      if (splitter.isTooLong) this.#addBad(`longer than ${MAX_LINE_BYTES} bytes`);
      else if (from === to) counts.blank++;
      else {
        this.#reader ??= this.#detect();
        const { format, key, isCounted, cost } = this.#reader;
        if (this.#reader.isHeaderLine(splitter.line)) counts.blank++;
        else if (!format.read(bytes, from, to)) this.#addBad(format.problem, true);
        else if (isCounted !== undefined && !isCounted()) counts.leftOut++;
        else if (!key.hash()) counts.addKeyless(format);
        else if (cost !== undefined && !this.#readCost(cost)) this.#addBad('expected a cost', true);
        else {
          const id = this.#keys.find();
          this.id = id >= 0 ? id : this.#keys.add(key.name());
          if (this.id < 0) {
            counts.furtherKeys++;
            continue;
          }
          this.at = format.at;
          return true;
        }
      }
    }
    return false;
  }

  #readCost(cost: KeyExpression): boolean {
    this.cost = Number(cost.text() || Number.NaN);
    return this.cost >= 0 && this.cost <= MAX_AMOUNT;
  }

  #skipByteOrderMark(): void {
    const { bytes, from } = this.#splitter;
    if (bytes.subarray(from, from + 3).equals(BYTE_ORDER_MARK)) this.#splitter.from += 3;
  }

  #addBad(problem: string, isShown = false): void {
    const counts = this.#counts;
    const { name } = this.bytes;
    if (counts.problems.length >= MAX_SHOWN_PROBLEMS) counts.bad++;
    else
      counts.addBad(
        `${name}:${this.#splitter.line}`,
        isShown ? `${problem}, got ${excerptOf(this.#splitter)}` : problem,
      );
  }

  /** Finds the format from the first lines that are in memory, of which the splitter is at the first. */
  #detect(): LineReader {
    const { bytes, from, to, line } = this.#splitter;
    const { format: wanted, time, zoneMinutes } = this.#options;
    const first = bytes.subarray(from, to);
    const name = wanted ?? detectFormat(bytes.subarray(from), first);
    try {
      if (name === undefined)
        throw new CommandError(
          `cannot tell its format from its first lines (${excerptOf(this.#splitter)}); name it with --format`,
        );
      const format = createFormat(name, first, time, zoneMinutes);
      return new LineReader(format, this.#options, this.#keys, line);
    } catch (error) {
      if (!(error instanceof CommandError)) throw error;
      throw new CommandError(`${this.bytes.name}: ${error.message}`);
    }
  }
}

/** A format and what is read with it. */
class LineReader {
  readonly format: LineFormat;
  readonly key: KeyExpression;
  readonly isCounted: (() => boolean) | undefined;
  readonly cost: KeyExpression | undefined;
  readonly #headerLine: number;

  constructor(
    format: LineFormat,
    { key, cost, conditions }: LineOptions,
    { hasher }: KeyTable,
    firstLine: number,
  ) {
    this.format = format;
    this.key = new KeyExpression(key, format, hasher);
    this.isCounted = conditions.length > 0 ? compileConditions(conditions, format) : undefined;
    this.cost = cost === undefined ? undefined : new KeyExpression([[cost]], format, hasher);
    this.#headerLine = format instanceof CsvFormat && format.hasHeader ? firstLine : 0;
  }

  isHeaderLine(line: number): boolean {
    return line === this.#headerLine;
  }
}

function createFormat(
  name: FormatName,
  first: Buffer,
  time: string | undefined,
  zoneMinutes: number,
): LineFormat {
  if (name === 'combined') {
    if (time === undefined) return new CombinedFormat();
    throw new CommandError('expected no `--time`: an access log has its time in brackets');
  }
  return name === 'json'
    ? new JsonFormat(time, zoneMinutes)
    : new CsvFormat(first, time, zoneMinutes);
}

/** The first of the first lines that is an access log or JSON decides; otherwise columns. */
function detectFormat(bytes: Buffer, first: Buffer): FormatName | undefined {
  const splitter = new LineSplitter();
  splitter.push(bytes);
  splitter.end();
  const combined = new CombinedFormat();
  while (splitter.line < MAX_DETECTION_LINES && splitter.next()) {
    const { from, to } = splitter;
    if (combined.read(bytes, from, to)) return 'combined';
    if (bytes[from] === '{'.charCodeAt(0)) return 'json';
  }
  const text = first.toString('latin1');
  return delimiterOf(text) !== undefined && !CONTROL.test(text) ? 'csv' : undefined;
}

/** Bytes that no text has. */
const CONTROL = /[^\P{Cc}\t]/u;

function excerptOf({ bytes, from, to }: LineSplitter): string {
  const end = Math.min(to, from + MAX_SHOWN_CHARS);
  const text = toKeyText(bytes.toString('latin1', from, end));
  return JSON.stringify(end < to ? `${text}…` : text);
}
