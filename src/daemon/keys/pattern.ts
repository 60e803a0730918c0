/**
 *     alice                    this key only
 *     ip:10.0.*                a string with * (anything) or ? (one character) is a glob
 *     ip:10.0.0.0/8            a string that ends with an address and a prefix length is a network
 *     { prefix: 'ip:' }        keys with this prefix, taken literally
 *     { exact: 'a*b' }         this key only, taken literally
 *     { glob: 'ip:10.0.*' }
 *     { cidr: '10.0.0.0/8' }
 *     { regex: 'user-[0-9]+' } must match the whole key; RE2, so linear time for any key
 *     { file: blocked.txt }    in a list: each line of a file is such a string
 *
 * Precedence: of several matching patterns the most specific wins. Exact keys come first, then networks by
 * their prefix length, then prefixes and globs by their number of literal characters, then regular
 * expressions, then `*`. The first of equals in the configuration wins.
 */

import { RE2JS } from 're2js';
import { isNonEmptyString, isString } from '../../core/config-helpers.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { isRecord, OptionReader, readEachInSteps } from '../../core/options.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import { toBinaryKey, toKeyText } from './binary-key.ts';
import { endsLikeIpv6 } from './canonical-key.ts';
import { isCidr, isInKeyNetwork, type KeyNetwork, parseCidr } from './cidr.ts';
import { parseIpKey } from './ip-key.ts';
import { lineReader, type ReadLines } from './text-file.ts';

export interface Pattern {
  /** As configured, in one line. Identifies the pattern: names of overrides and routes are made of it. */
  readonly text: string;
  /** `readPattern` makes an equal pattern of this value. */
  readonly written: Readonly<Record<string, string>>;
  /** Larger is more specific. */
  readonly specificity: number;
  /** The binary key, if the pattern matches exactly one. */
  readonly exactKey?: string;
  /** The network, if the pattern is one. */
  readonly network?: KeyNetwork;
  /** Prefix of every binary key that matches; the index looks patterns up by it. */
  readonly literalPrefix: string;
  /** Parts of every binary key that matches, where the pattern has some. */
  readonly literals?: readonly string[];
  matches(key: string): boolean;
}

const MAX_PATTERN_CHARS = 1000;

/** Regular expressions in one list: each is tried on every key whose route is not cached, and no index can skip one. */
const MAX_REGEXES = 100;

/** More than a network of 128 bits. */
const EXACT_SPECIFICITY = 1_000_000;
/** More than `MAX_PATTERN_CHARS`; the prefix length is added. */
const CIDR_SPECIFICITY = 10_000;
const REGEX_SPECIFICITY = 0.5;

export const MATCH_ALL: Pattern = {
  text: '*',
  written: { glob: '*' },
  specificity: 0,
  literalPrefix: '',
  matches: () => true,
};

const PATTERN_READERS: Readonly<Record<string, (text: string, path: string) => Pattern>> = {
  exact,
  prefix,
  glob,
  regex,
  cidr,
};

const EXPECTED_PATTERN = `a key, a glob such as "ip:*", a network such as "10.0.0.0/8", or an object with one of ${Object.keys(PATTERN_READERS).join(', ')}, file`;

/** Reads one pattern. @throws {ConfigError} */
export function readPattern(value: unknown, path: string): Pattern {
  if (typeof value === 'string') return create(kindOf(value), value, path);
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

/** How a string is read that says nothing about its kind. */
function kindOf(text: string): string {
  if (/[*?]/.test(text)) return 'glob';
  return isCidr(text) || isIpv6(text) ? 'cidr' : 'exact';
}

/** An IPv6 address has many spellings: it is a network of one address. */
const isIpv6 = (text: string): boolean => endsLikeIpv6(text) && parseIpKey(text) !== undefined;

function create(kind: string, text: string, path: string): Pattern {
  if (text.length > MAX_PATTERN_CHARS)
    throw new ConfigError(path, `at most ${MAX_PATTERN_CHARS} characters`, text);
  return PATTERN_READERS[kind](text, path);
}

/** Reads one pattern or a list, and the files in it. @throws {ConfigError} */
export const readPatterns = (
  value: unknown,
  path: string,
  readLines?: ReadLines,
): readonly Pattern[] => runAtOnce(readPatternsInSteps(value, path, readLines));

export function* readPatternsInSteps(
  value: unknown,
  path: string,
  readLines: ReadLines = lineReader('.'),
): Steps<readonly Pattern[]> {
  if (value === undefined) return [];
  if (!Array.isArray(value)) return yield* readItem(value, path, readLines);
  const lists = yield* readEachInSteps(value, (item, n) =>
    readItem(item, `${path}[${n}]`, readLines),
  );
  const patterns: Pattern[] = [];
  for (const list of lists) for (const pattern of list) patterns.push(pattern); // faster than `flat`
  requireFewRegexes(patterns, path);
  return patterns;
}

/** @throws {ConfigError} */
export function requireFewRegexes(patterns: Iterable<Pattern>, path: string): void {
  let count = 0;
  for (const { written } of patterns) if ('regex' in written) count++;
  if (count <= MAX_REGEXES) return;
  const expected = `a list with at most ${MAX_REGEXES} regular expressions: write prefixes, globs or networks, of which there may be many, or join expressions with |`;
  throw new ConfigError(path, expected, count);
}

function* readItem(value: unknown, path: string, readLines: ReadLines): Steps<readonly Pattern[]> {
  return isRecord(value) && Object.hasOwn(value, 'file')
    ? yield* readPatternFile(value, path, readLines)
    : [readPattern(value, path)];
}

/** `{ file: blocked.txt, prefix: 'ip:' }`: one string a line, each after the prefix. */
function readPatternFile(
  value: object,
  path: string,
  readLines: ReadLines,
): Steps<readonly Pattern[]> {
  const fields = new OptionReader(path, value);
  const file = fields.required('file', isNonEmptyString, 'a file name');
  const linePrefix = fields.optional('prefix', isString, 'a string') ?? '';
  fields.finish();
  return readLines(file, fields.pathOf('file'), (text) => readPattern(linePrefix + text, ''));
}

/** The most specific matching pattern, if any. For many patterns use a `PatternTable`. */
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
    text: kindOf(text) !== 'exact' || isSlashed(text) ? `{exact: ${text}}` : text,
    written: { exact: text },
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
    written: { prefix: text },
    specificity: text.length,
    literalPrefix: binaryPrefix,
    matches: (key) => key.startsWith(binaryPrefix),
  };
}

function glob(text: string): Pattern {
  if (text === '*') return MATCH_ALL;
  const literals = text.replace(/[*?]/g, '').length;
  const characters = [...text];
  const known = text.split(NOT_LITERAL).filter((literal) => literal !== '');
  const segments = NEEDS_CHARACTERS.test(text) ? undefined : text.split('*');
  const literalPrefix = toBinaryKey(LITERAL_PREFIX.exec(text)?.[0] ?? '');
  return {
    text: isSlashed(text) ? `{glob: ${text}}` : text,
    written: { glob: text },
    specificity: literals,
    literalPrefix,
    literals: known.map(toBinaryKey),
    matches: (key) =>
      segments
        ? segmentsMatch(segments, decode(key).text)
        : globMatches(characters, charactersOf(key)),
  };
}

/** The last key: many globs are tried on one. */
let last: { readonly key: string; readonly text: string; characters?: readonly string[] } = {
  key: '',
  text: '',
};

function decode(key: string): typeof last {
  if (last.key !== key) last = { key, text: toKeyText(key) };
  return last;
}

function charactersOf(key: string): readonly string[] {
  const decoded = decode(key);
  decoded.characters ??= [...decoded.text];
  return decoded.characters;
}

/** Splits a glob into text that its keys contain byte for byte. */
const NOT_LITERAL = /[*?\ufffd\p{Surrogate}]/u;

/** Ends at a replacement character, which stands for any invalid byte. */
const LITERAL_PREFIX = /^[^*?\ufffd\ud800-\udfff]*/;

/** A glob with ? stands for characters, which may be two code units; half of one matches no text. */
const NEEDS_CHARACTERS = /[?\p{Surrogate}]/u;

/**
 * Decides as `globMatches` for a glob without ?, by its literals between stars. A client chooses its keys: a long one
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

function cidr(text: string, path: string): Pattern {
  const network = parseCidr(isIpv6(text) ? `${text}/128` : text, path);
  return {
    text,
    written: { cidr: text },
    specificity: CIDR_SPECIFICITY + network.prefixBits,
    network,
    literalPrefix: network.prefix,
    matches: (key) => isInKeyNetwork(key, network),
  };
}

function regex(text: string, path: string): Pattern {
  try {
    const compiled = RE2JS.compile(text);
    return {
      text: `/${text}/`,
      written: { regex: text },
      specificity: REGEX_SPECIFICITY,
      literalPrefix: '',
      matches: (key) => compiled.matches(toKeyText(key)),
    };
  } catch (error) {
    throw new ConfigError(path, `a regular expression (${errorMessageOf(error)})`, text);
  }
}
