/**
 * What a URL or a form asks for: names and values, taken apart by hand, as one stands in every request.
 *
 *     limit=api&key=caf%C3%A9+7   ──▶   ['api', 'caf\xc3\xa9 7']
 *
 * Values come out as tags: one character for each byte. Nothing here throws. What makes no sense is a
 * complaint, a value like any other.
 */

import { formatMismatch } from '../../../core/errors.ts';

/** What is wrong with what was asked, for whoever asked it: said as in an error, but nothing is thrown. */
export class ValidationProblem {
  readonly #field: string;
  readonly #expected: string;
  readonly #got: unknown;

  constructor(field: string, expected: string, got: unknown) {
    this.#field = field;
    this.#expected = expected;
    this.#got = got;
  }

  get detail(): string {
    return formatMismatch(this.#field, this.#expected, this.#got);
  }

  /** The same of one question among many. */
  within(path: string): ValidationProblem {
    const field = this.#field === '' ? path : `${path}.${this.#field}`;
    return new ValidationProblem(field, this.#expected, this.#got);
  }
}

/** The values of these names, in their order; undefined where one was not given. */
export type ParameterValues = (string | undefined)[];

/** Long enough to recognise what came. */
const MAX_SHOWN_CHARS = 60;

/** A value in one short line of printable ASCII. */
export const preview = (text: string): string => JSON.stringify(text.slice(0, MAX_SHOWN_CHARS));

/** Reads `name=value&…` from a place on. A name that is unknown, or comes twice, is a mistake. */
export function readParameters(
  text: string,
  from: number,
  names: readonly string[],
): ParameterValues | ValidationProblem {
  const values: ParameterValues = new Array(names.length).fill(undefined);
  for (let at = from; at < text.length; ) {
    const found = text.indexOf('&', at);
    const end = found < 0 ? text.length : found;
    if (end > at) {
      const complaint = readPair(text, at, end, names, values);
      if (complaint) return complaint;
    }
    at = end + 1;
  }
  return values;
}

const EXPECTED_ENCODING = 'percent-encoded, with two hexadecimal digits after each %';

function readPair(
  text: string,
  from: number,
  to: number,
  names: readonly string[],
  values: ParameterValues,
): ValidationProblem | undefined {
  const equals = text.indexOf('=', from);
  const nameEnd = equals < 0 || equals > to ? to : equals;
  const name = text.slice(from, nameEnd);
  const n = names.indexOf(name);
  if (n < 0) return new ValidationProblem('', `one of ${names.join(', ')}`, name);
  const written = text.slice(nameEnd + 1, to);
  if (values[n] !== undefined) return new ValidationProblem(name, 'there once', written);
  const value = percentDecode(written);
  if (value === undefined) return new ValidationProblem(name, EXPECTED_ENCODING, written);
  values[n] = value;
  return undefined;
}

/** Undoes `%C3` and `+`, byte by byte; undefined if an escape is none. */
function percentDecode(value: string): string | undefined {
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

/** Two hexadecimal digits, or something below 0. */
const hexByte = (text: string, at: number): number =>
  at + 2 > text.length
    ? -1
    : hexDigit(text.charCodeAt(at)) * 16 + hexDigit(text.charCodeAt(at + 1));

/** Far enough below 0 that no other digit makes up for it. */
const NOT_A_DIGIT = -1000;

function hexDigit(code: number): number {
  if (code >= 48 && code <= 57) return code - 48;
  const letter = code | 32; // a capital as a small one
  return letter >= 97 && letter <= 102 ? letter - 87 : NOT_A_DIGIT;
}
