/**
 * The key of a line, made of its fields.
 *
 *     ip                 one field
 *     user|ip            the first of several that the line has
 *     ip:{ip}            a template: text, and fields in braces
 *     {user|ip}:{path}
 *     *                  one key for all lines
 *
 * A key that is one field of bytes is hashed where it stands, without decoding it.
 */

import type { Hasher } from '../../core/hash.ts';
import { toBinaryKey } from '../../daemon/keys/binary-key.ts';
import { CommandError } from '../framework/command.ts';
import { type Field, type LineFormat, RangeFormat } from './line-format.ts';

/** A piece of a template: text, or the first of these fields. */
type Piece = string | readonly string[];

/** One key for all lines. */
const ALL = '*';

/** @throws {CommandError} */
export function parseTemplate(text: string, flag: string): readonly Piece[] {
  const fail = (expected: string): never => {
    throw new CommandError(`expected \`--${flag}\` to be ${expected}, got "${text}"`);
  };
  const names = (list: string): readonly string[] => {
    const fields = list.split('|').map((name) => name.trim());
    return fields.includes('') ? fail('fields such as ip or user|ip, or {ip}:{path}') : fields;
  };
  if (text === ALL) return [ALL];
  if (!/[{}]/.test(text)) return [names(text)];
  const pieces: Piece[] = [];
  for (const [, literal, field, stray] of text.matchAll(/([^{}]+)|\{([^{}]*)\}|([{}])/g)) {
    if (stray) fail('a template with a closing brace for every opening one');
    pieces.push(literal === undefined ? names(field) : toBinaryKey(literal));
  }
  return pieces;
}

/** A template whose fields are those of the lines of one log. */
export class KeyExpression {
  readonly #hasher: Hasher;
  readonly #pieces: readonly (string | readonly Field[])[];
  readonly #bytes: RangeFormat | undefined;
  readonly #range: number;
  #text: string | undefined;

  constructor(pieces: readonly Piece[], format: LineFormat, hasher: Hasher) {
    this.#hasher = hasher;
    this.#pieces = pieces.map((piece) =>
      typeof piece === 'string' ? piece : piece.map((name) => format.field(name)),
    );
    const [first] = this.#pieces;
    const only = this.#pieces.length === 1 && typeof first !== 'string' ? first : [];
    // Columns of CSV may have doubled quotes, and are decoded.
    const isRange =
      only.length === 1 && format instanceof RangeFormat && format.name === 'combined';
    this.#bytes = isRange ? format : undefined;
    this.#range = only[0]?.range ?? 0;
  }

  /** Hashes the key of the current line; false if the line has none. */
  hash(): boolean {
    const format = this.#bytes;
    if (format === undefined) {
      this.#text = this.text();
      if (this.#text === undefined) return false;
      this.#hasher.hash(this.#text);
      return true;
    }
    const [from, to] = [format.starts[this.#range], format.ends[this.#range]];
    if (to < from) return false;
    this.#hasher.hashBytes(format.bytes, from, to);
    return true;
  }

  /** The key of the line whose hash was made last. */
  name(): string {
    return this.#text ?? this.text() ?? '';
  }

  /** The text for the current line, as a binary key; undefined if the line lacks a field. */
  text(): string | undefined {
    let text = '';
    for (const piece of this.#pieces) {
      const part = typeof piece === 'string' ? piece : firstOf(piece);
      if (part === undefined) return undefined;
      text += part;
    }
    return text;
  }
}

function firstOf(fields: readonly Field[]): string | undefined {
  for (const field of fields) {
    const text = field.text();
    if (text !== undefined) return text;
  }
  return undefined;
}
