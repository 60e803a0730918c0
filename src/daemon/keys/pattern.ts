/**
 * Which keys something is for.
 *
 *     alice                    that key, and no other
 *     ip:10.0.*                a text with * (anything) or ? (one character) is a glob
 *     { prefix: 'ip:' }        keys that begin so; nothing in it is special
 *     { exact: 'a*b' }         that key, stars and all
 *     { glob: 'ip:10.0.*' }
 *     { regex: 'user-[0-9]+' } the whole key must match; linear time, whatever the key
 *
 * Where several match, the most specific one counts: a key by its name before any pattern, then
 * prefixes and globs by how many characters they spell out, then regular expressions, then what is for
 * everything; and what is written first among equals.
 */

import { RE2JS } from 're2js';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { toBinaryKey, toKeyText } from './binary-key.ts';

export interface Pattern {
  /** As it was written, in one line. */
  readonly text: string;
  /** The most specific is the largest. */
  readonly specificity: number;
  /** The one tag it is for, if it is for one only. */
  readonly exactKey?: string;
  /** How every tag begins that it is for; the longer, the sooner it is found among many. */
  readonly literalPrefix: string;
  matches(key: string): boolean;
}

/** A longer pattern is a mistake, or an attack. */
const MAX_PATTERN_CHARS = 1000;

/** More than any pattern can spell out. */
const EXACT_SPECIFICITY = 1_000_000;
const REGEX_SPECIFICITY = 0.5;

export const MATCH_ALL: Pattern = {
  text: '*',
  specificity: 0,
  literalPrefix: '',
  matches: () => true,
};

const PATTERN_READERS: Readonly<Record<string, (text: string, path: string) => Pattern>> = {
  exact,
  prefix,
  glob,
  regex,
};

const EXPECTED_PATTERN = `a key, a glob such as "ip:*", or an object with one of ${Object.keys(PATTERN_READERS).join(', ')}`;

/** Reads one pattern. @throws {ConfigError} */
export function readPattern(value: unknown, path: string): Pattern {
  if (typeof value === 'string') return /[*?]/.test(value) ? glob(value, path) : exact(value, path);
  if (!isRecord(value)) throw new ConfigError(path, EXPECTED_PATTERN, value);
  const fields = new OptionReader(path, value, EXPECTED_PATTERN);
  const [kind, ...others] = fields.names();
  if (kind === undefined || others.length > 0 || !Object.hasOwn(PATTERN_READERS, kind)) {
    throw new ConfigError(path, EXPECTED_PATTERN, value);
  }
  const text = fields.get(kind);
  if (typeof text !== 'string' || text === '')
    fields.throwFor(kind, 'a text of at least one letter');
  return PATTERN_READERS[kind](text as string, fields.pathOf(kind));
}

/** Reads one pattern or a list of them. */
export function readPatterns(value: unknown, path: string): readonly Pattern[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) return [readPattern(value, path)];
  return readEach(value, (own, n) => readPattern(own, `${path}[${n}]`));
}

/** The most specific pattern that matches, if one does. Of many, a `PatternIndex` finds it sooner. */
export function bestMatch(patterns: readonly Pattern[], key: string): Pattern | undefined {
  let best: Pattern | undefined;
  for (const pattern of patterns) {
    if ((best === undefined || pattern.specificity > best.specificity) && pattern.matches(key))
      best = pattern;
  }
  return best;
}

function requireMaxLength(text: string, path: string): void {
  if (text.length > MAX_PATTERN_CHARS)
    throw new ConfigError(path, `at most ${MAX_PATTERN_CHARS} characters`, text);
}

function exact(text: string, path: string): Pattern {
  requireMaxLength(text, path);
  const key = toBinaryKey(text);
  return {
    text,
    specificity: EXACT_SPECIFICITY,
    exactKey: key,
    literalPrefix: key,
    matches: (other) => other === key,
  };
}

function prefix(text: string, path: string): Pattern {
  requireMaxLength(text, path);
  const head = toBinaryKey(text);
  return {
    text: `${text}*`,
    specificity: text.length,
    literalPrefix: head,
    matches: (key) => key.startsWith(head),
  };
}

function glob(text: string, path: string): Pattern {
  requireMaxLength(text, path);
  if (text === '*') return MATCH_ALL;
  const weight = text.replace(/[*?]/g, '').length;
  const characters = [...text];
  const head = toBinaryKey(LITERAL_PREFIX.exec(text)?.[0] ?? '');
  return {
    text,
    specificity: weight,
    literalPrefix: head,
    matches: (key) => globMatches(characters, [...toKeyText(key)]),
  };
}

/** What a glob begins with. Not further than a replacement mark, which stands for any wrong byte. */
const LITERAL_PREFIX = /^[^*?\ufffd\ud800-\udfff]*/;

/**
 * Whether a glob takes in a whole text. On a mismatch the last star takes one character more and
 * everything behind it is tried again: no worse than both lengths multiplied, whatever they are.
 */
function globMatches(glob: readonly string[], text: readonly string[]): boolean {
  let g = 0;
  let t = 0;
  let star = -1;
  let taken = 0;
  while (t < text.length) {
    if (glob[g] === '*') {
      star = g++;
      taken = t;
    } else if (g < glob.length && (glob[g] === '?' || glob[g] === text[t])) {
      g++;
      t++;
    } else if (star >= 0) {
      g = star + 1;
      t = ++taken;
    } else return false;
  }
  while (glob[g] === '*') g++;
  return g === glob.length;
}

function regex(text: string, path: string): Pattern {
  requireMaxLength(text, path);
  try {
    const compiled = RE2JS.compile(text);
    return {
      text: `/${text}/`,
      specificity: REGEX_SPECIFICITY,
      literalPrefix: '',
      matches: (key) => compiled.matches(toKeyText(key)),
    };
  } catch (error) {
    throw new ConfigError(path, `a regular expression (${errorMessageOf(error)})`, text);
  }
}
