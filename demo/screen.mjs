/**
 * Terminal output: a log, and below it a table that is redrawn in place.
 *
 * Without a terminal (a pipe, CI) it prints lines, and the table only on `keepTable`.
 */

import { stripVTControlCharacters } from 'node:util';

const CLEAR_BELOW = '\x1b[J';
const up = (lines) => (lines > 0 ? `\x1b[${lines}A` : '');
/** The terminal truncates long lines instead of wrapping them, because redrawing counts lines. */
const cut = (text) => `\x1b[?7l${text}\x1b[?7h`;

const CODES = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 };

export const paint = (look, text) => (look ? `\x1b[${CODES[look]}m${text}\x1b[0m` : text);

export class Screen {
  #out;
  #table;
  #log = [];
  /** Lines of the table on the screen. */
  #drawn = 0;

  /** `table` returns the current lines of the table. */
  constructor(out, table) {
    this.#out = out;
    this.#table = table;
  }

  log(line) {
    this.#log.push(line);
    this.#write(line);
    this.draw();
  }

  /** Redraws the table on a terminal. */
  draw() {
    if (!this.#out.isTTY) return;
    const lines = ['', ...this.#table()];
    this.#write(cut(lines.join('\n')));
    this.#drawn = lines.length;
  }

  /** Prints the table where it cannot be redrawn. */
  keepTable() {
    if (!this.#out.isTTY) this.#write(['', ...this.#table(), ''].join('\n'));
  }

  /** Prints a line below the table. */
  print(line) {
    this.#drawn = 0;
    this.#write(line);
  }

  /** Log and table. */
  lines() {
    return [...this.#log, '', ...this.#table()];
  }

  /** Replaces the table on the screen. */
  #write(text) {
    const { isTTY } = this.#out;
    const shown = isTTY && !process.env.NO_COLOR ? text : withoutColours(text, isTTY);
    this.#out.write(`${isTTY ? up(this.#drawn) + CLEAR_BELOW : ''}${shown}\n`);
    this.#drawn = 0;
  }
}

const COLOURS = new RegExp(`${'\x1b'}\\[\\d+m`, 'g');

const withoutColours = (text, isTTY) =>
  isTTY ? text.replace(COLOURS, '') : stripVTControlCharacters(text);
