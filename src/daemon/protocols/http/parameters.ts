/**
 * Reads `name=value&…` from a URL or a form, by hand: every request has one.
 *
 *     limit=api&key=caf%C3%A9+7   ──▶   ['api', 'caf\xc3\xa9 7']
 *
 * Values come out as binary keys: one character per byte. Nothing here throws: an invalid parameter is
 * returned as a `ValidationProblem`.
 */

import { formatMismatch } from '../../../core/errors.ts';

/** An invalid request: worded like a `ConfigError`, but returned and not thrown. */
export class ValidationProblem {
  readonly #field: string;
  readonly #expected: string;
  readonly #got: unknown;
  readonly #hint: string | undefined;

  constructor(field: string, expected: string, got: unknown, hint?: string) {
    this.#field = field;
    this.#expected = expected;
    this.#got = got;
    this.#hint = hint;
  }

  get detail(): string {
    return formatMismatch(this.#field, this.#expected, this.#got, this.#hint);
  }

  /** Places the problem in one check of a batch. */
  within(path: string): ValidationProblem {
    const isIndex = this.#field === '' || this.#field.startsWith('[');
    const field = isIndex ? path + this.#field : `${path}.${this.#field}`;
    return new ValidationProblem(field, this.#expected, this.#got, this.#hint);
  }
}

/** Values in the order of the expected names; undefined where a parameter is missing. */
export type ParameterValues = (string | undefined)[];

const MAX_SHOWN_CHARS = 60;

/** A value as one short line of printable ASCII. */
export const preview = (text: string): string => JSON.stringify(text.slice(0, MAX_SHOWN_CHARS));

const EXPECTED_ENCODING = 'percent-encoded, with two hexadecimal digits after each %';

/** Reads parameters from an offset on. An unknown or repeated name is an error. */
export function readParameters(
  text: string,
  from: number,
  names: readonly string[],
): ParameterValues | ValidationProblem {
  const values: ParameterValues = new Array(names.length).fill(undefined);
  for (let at = from; at < text.length; ) {
    const ampersand = text.indexOf('&', at);
    const end = ampersand < 0 ? text.length : ampersand;
    if (end > at) {
      const equals = text.indexOf('=', at);
      const nameEnd = equals < 0 || equals > end ? end : equals;
      const name = text.slice(at, nameEnd);
      const n = names.indexOf(name);
      if (n < 0) return new ValidationProblem('', expectedNames(names), name);
      const encoded = text.slice(nameEnd + 1, end);
      if (values[n] !== undefined) return new ValidationProblem(name, 'given once', encoded);
      values[n] = percentDecode(encoded);
      if (values[n] === undefined) return new ValidationProblem(name, EXPECTED_ENCODING, encoded);
    }
    at = end + 1;
  }
  return values;
}

const expectedNames = (names: readonly string[]): string =>
  names.length > 0 ? `one of ${names.join(', ')}` : 'no parameters';

/** Decodes `%C3` and `+` byte by byte; undefined if an escape is invalid. */
export function percentDecode(value: string): string | undefined {
  const spaced = value.includes('+') ? value.replaceAll('+', ' ') : value;
  let percent = spaced.indexOf('%');
  if (percent < 0) return spaced;
  let text = '';
  let from = 0;
  for (; percent >= 0; percent = spaced.indexOf('%', from)) {
    const byte = hexByte(spaced, percent + 1);
    if (byte < 0) return undefined;
    text += spaced.slice(from, percent) + String.fromCharCode(byte);
    from = percent + 3;
  }
  return text + spaced.slice(from);
}

/** Two hexadecimal digits; below 0 if they are invalid. */
const hexByte = (text: string, at: number): number =>
  at + 2 > text.length
    ? -1
    : hexDigit(text.charCodeAt(at)) * 16 + hexDigit(text.charCodeAt(at + 1));

/** Negative enough that no valid second digit makes the byte positive. */
const NOT_A_DIGIT = -1000;

function hexDigit(code: number): number {
  if (code >= 48 && code <= 57) return code - 48;
  const letter = code | 32; // lower case
  return letter >= 97 && letter <= 102 ? letter - 87 : NOT_A_DIGIT;
}
