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
import { ConfigError, reasonOf } from '../../core/errors.ts';
import { Fields, isRecord, readEach } from '../../core/options.ts';
import { tagOf, textOf } from './binary-key.ts';

export interface Pattern {
  /** As it was written, in one line. */
  readonly text: string;
  /** The most specific is the largest. */
  readonly weight: number;
  /** The one tag it is for, if it is for one only. */
  readonly tag?: string;
  /** How every tag begins that it is for; the longer, the sooner it is found among many. */
  readonly head: string;
  matches(tag: string): boolean;
}

/** A longer pattern is a mistake, or an attack. */
const PATTERN_CHARS_MAX = 1000;

/** More than any pattern can spell out. */
const EXACT_WEIGHT = 1_000_000;
const REGEX_WEIGHT = 0.5;

export const EVERYTHING: Pattern = { text: '*', weight: 0, head: '', matches: () => true };

const KINDS: Readonly<Record<string, (text: string, path: string) => Pattern>> = {
  exact,
  prefix,
  glob,
  regex,
};

const EXPECTED = `a key, a glob such as "ip:*", or an object with one of ${Object.keys(KINDS).join(', ')}`;

/** Reads one pattern. @throws {ConfigError} */
export function readPattern(value: unknown, path: string): Pattern {
  if (typeof value === 'string') return /[*?]/.test(value) ? glob(value, path) : exact(value, path);
  if (!isRecord(value)) throw new ConfigError(path, EXPECTED, value);
  const fields = new Fields(path, value, EXPECTED);
  const [kind, ...others] = fields.names();
  if (kind === undefined || others.length > 0 || !Object.hasOwn(KINDS, kind)) {
    throw new ConfigError(path, EXPECTED, value);
  }
  const text = fields.raw(kind);
  if (typeof text !== 'string' || text === '') fields.fail(kind, 'a text of at least one letter');
  return KINDS[kind](text as string, fields.at(kind));
}

/** Reads one pattern or a list of them. */
export function readPatterns(value: unknown, path: string): readonly Pattern[] {
  if (value === undefined) return [];
  if (!Array.isArray(value)) return [readPattern(value, path)];
  return readEach(value, (own, n) => readPattern(own, `${path}[${n}]`));
}

/** The most specific pattern that matches, if one does. Of many, a `PatternIndex` finds it sooner. */
export function bestMatch(patterns: readonly Pattern[], tag: string): Pattern | undefined {
  let best: Pattern | undefined;
  for (const pattern of patterns) {
    if ((best === undefined || pattern.weight > best.weight) && pattern.matches(tag))
      best = pattern;
  }
  return best;
}

function requireShort(text: string, path: string): void {
  if (text.length > PATTERN_CHARS_MAX)
    throw new ConfigError(path, `at most ${PATTERN_CHARS_MAX} characters`, text);
}

function exact(text: string, path: string): Pattern {
  requireShort(text, path);
  const tag = tagOf(text);
  return { text, weight: EXACT_WEIGHT, tag, head: tag, matches: (other) => other === tag };
}

function prefix(text: string, path: string): Pattern {
  requireShort(text, path);
  const head = tagOf(text);
  return { text: `${text}*`, weight: text.length, head, matches: (tag) => tag.startsWith(head) };
}

function glob(text: string, path: string): Pattern {
  requireShort(text, path);
  if (text === '*') return EVERYTHING;
  const weight = text.replace(/[*?]/g, '').length;
  const characters = [...text];
  const head = tagOf(SPELLED_OUT.exec(text)?.[0] ?? '');
  return { text, weight, head, matches: (tag) => globMatches(characters, [...textOf(tag)]) };
}

/** What a glob begins with. Not further than a replacement mark, which stands for any wrong byte. */
const SPELLED_OUT = /^[^*?\ufffd\ud800-\udfff]*/;

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
  requireShort(text, path);
  try {
    const compiled = RE2JS.compile(text);
    return {
      text: `/${text}/`,
      weight: REGEX_WEIGHT,
      head: '',
      matches: (tag) => compiled.matches(textOf(tag)),
    };
  } catch (error) {
    throw new ConfigError(path, `a regular expression (${reasonOf(error)})`, text);
  }
}
