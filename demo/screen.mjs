/**
 * The terminal: what has happened, line by line, and below it a table that is drawn again in place.
 *
 * Where nobody watches (a pipe, CI) nothing can be taken back: there it prints lines, and a table when it is told to.
 */

import { stripVTControlCharacters } from 'node:util';

const CLEAR_BELOW = '\x1b[J';
const up = (lines) => (lines > 0 ? `\x1b[${lines}A` : '');
/** A line that is too long for a narrow terminal is cut by it, not wrapped: we count lines. */
const cut = (text) => `\x1b[?7l${text}\x1b[?7h`;

const CODES = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 };

export const paint = (look, text) => (look ? `\x1b[${CODES[look]}m${text}\x1b[0m` : text);

export class Screen {
  #out;
  #table;
  #told = [];
  /** Lines of the table that stand on the screen. */
  #drawn = 0;

  /** `table` gives the lines of the table as they are now. */
  constructor(out, table) {
    this.#out = out;
    this.#table = table;
  }

  tell(line) {
    this.#told.push(line);
    this.#write(line);
    this.draw();
  }

  /** Draws the table as it is now, if it can be drawn again later. */
  draw() {
    if (!this.#out.isTTY) return;
    const lines = ['', ...this.#table()];
    this.#write(cut(lines.join('\n')));
    this.#drawn = lines.length;
  }

  /** Leaves a table for those who cannot see it change. */
  keepTable() {
    if (!this.#out.isTTY) this.#write(['', ...this.#table(), ''].join('\n'));
  }

  /** Below everything; the table stays as it is. */
  print(line) {
    this.#drawn = 0;
    this.#write(line);
  }

  /** All there is to see. */
  lines() {
    return [...this.#told, '', ...this.#table()];
  }

  /** In place of the table that stands there. */
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
