/**
 * Key patterns of limits, overrides and lists.
 *
 *     alice                    this key only
 *     ip:10.0.*                a string with * (anything) or ? (one character) is a glob
 *     { prefix: 'ip:' }        keys with this prefix, taken literally
 *     { exact: 'a*b' }         this key only, taken literally
 *     { glob: 'ip:10.0.*' }
 *     { regex: 'user-[0-9]+' } must match the whole key; RE2, so linear time for any key
 *
 * Precedence: of several matching patterns the most specific wins. Exact keys come first, then prefixes
 * and globs by their number of literal characters, then regular expressions, then `*`. Of equals the
 * first in the configuration wins.
 */

import { RE2JS } from 're2js';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { toBinaryKey, toKeyText } from './binary-key.ts';

export interface Pattern {
  /** As configured, in one line. Identifies the pattern: names of overrides and routes are made of it. */
  readonly text: string;
  /** Larger is more specific. */
  readonly specificity: number;
  /** The binary key, if the pattern matches exactly one. */
  readonly exactKey?: string;
  /** Prefix of every binary key that matches; the index looks patterns up by it. */
  readonly literalPrefix: string;
  matches(key: string): boolean;
}

const MAX_PATTERN_CHARS = 1000;

/** More than `MAX_PATTERN_CHARS`. */
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
  if (typeof value === 'string') return create(/[*?]/.test(value) ? 'glob' : 'exact', value, path);
  if (!isRecord(value)) throw new ConfigError(path, EXPECTED_PATTERN, value);
  const reader = new OptionReader(path, value, EXPECTED_PATTERN);
  const [kind, ...others] = reader.names();
  if (kind === undefined || others.length > 0 || !Object.hasOwn(PATTERN_READERS, kind)) {
    throw new ConfigError(path, EXPECTED_PATTERN, value);
  }
  const text = reader.get(kind);
  if (typeof text !== 'string' || text === '')
    reader.throwFor(kind, 'a string of at least one character');
  return create(kind, text as string, reader.pathOf(kind));
}

function create(kind: string, text: string, path: string): Pattern {
  if (text.length > MAX_PATTERN_CHARS)
    throw new ConfigError(path, `at most ${MAX_PATTERN_CHARS} characters`, text);
  return PATTERN_READERS[kind](text, path);
}

/** Reads one pattern or a list. @throws {ConfigError} */
export function readPatterns(value: unknown, path: string): readonly Pattern[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) return [readPattern(value, path)];
  return readEach(value, (item, n) => readPattern(item, `${path}[${n}]`));
}

/** The most specific matching pattern, if any. For many patterns use a `PatternIndex`. */
export function bestMatch(patterns: readonly Pattern[], key: string): Pattern | undefined {
  let best: Pattern | undefined;
  for (const pattern of patterns) {
    if ((best === undefined || pattern.specificity > best.specificity) && pattern.matches(key))
      best = pattern;
  }
  return best;
}

/** True for a text that reads like a regular expression. */
const isSlashed = (text: string): boolean => /^\/.*\/$/s.test(text);

function exact(text: string): Pattern {
  const key = toBinaryKey(text);
  return {
    text: /[*?]/.test(text) || isSlashed(text) ? `{exact: ${text}}` : text,
    specificity: EXACT_SPECIFICITY,
    exactKey: key,
    literalPrefix: key,
    matches: (candidate) => candidate === key,
  };
}

function prefix(text: string): Pattern {
  const binaryPrefix = toBinaryKey(text);
  return {
    text: /[*?]/.test(text) ? `{prefix: ${text}}` : `${text}*`,
    specificity: text.length,
    literalPrefix: binaryPrefix,
    matches: (key) => key.startsWith(binaryPrefix),
  };
}

function glob(text: string): Pattern {
  if (text === '*') return MATCH_ALL;
  const literals = text.replace(/[*?]/g, '').length;
  const characters = [...text];
  const segments = NEEDS_CHARACTERS.test(text) ? undefined : text.split('*');
  const literalPrefix = toBinaryKey(LITERAL_PREFIX.exec(text)?.[0] ?? '');
  return {
    text: isSlashed(text) ? `{glob: ${text}}` : text,
    specificity: literals,
    literalPrefix,
    matches: (key) =>
      segments
        ? segmentsMatch(segments, toKeyText(key))
        : globMatches(characters, [...toKeyText(key)]),
  };
}

/** Ends at a replacement character, which stands for any invalid byte. */
const LITERAL_PREFIX = /^[^*?\ufffd\ud800-\udfff]*/;

/** A glob with ? stands for characters, which may be two code units; half of one matches no text. */
const NEEDS_CHARACTERS = /[?\p{Surrogate}]/u;

/**
 * The same as `globMatches` for a glob without ?, by its literals between stars. A client chooses its keys: a long one
 * must not take milliseconds for each glob that begins with a star.
 */
function segmentsMatch(segments: readonly string[], text: string): boolean {
  const [first] = segments;
  const last = segments[segments.length - 1];
  if (segments.length === 1) return text === first;
  if (!text.startsWith(first)) return false;
  let at = first.length;
  for (let n = 1; n < segments.length - 1; n++) {
    const found = text.indexOf(segments[n], at);
    if (found < 0) return false;
    at = found + segments[n].length;
  }
  return text.length - last.length >= at && text.endsWith(last);
}

/** Matches a whole text. A mismatch restarts behind the last star: at worst the product of both lengths. */
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
