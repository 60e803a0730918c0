/**
 * A control: what an operator set at run time, for a key and a time. Snapshots and peers carry it in this form.
 *
 *     ban       the key, or all keys of a pattern, are denied
 *     override  the key has another rule in one limit
 *     reset     the consumption of the key was forgotten; kept for a while so that peers learn of it
 *
 * The later one of two records with the same id wins. A daemon that replaces or removes a record gives the
 * new one a later time, also if its clock is behind that of the daemon that set it. Ends are on the clock of the daemon
 * that has the record (`control-message.ts`). A removal is a record too, until the removed control would have ended. So an
 * older copy, as of a daemon that was down, cannot restore it. The same holds for a control that replaced a longer one.
 */

import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, type OptionReader } from '../../core/options.ts';
import { toBinaryKey, toKeyText } from '../keys/binary-key.ts';
import { addressKeyOf } from '../keys/canonical-key.ts';
import { networkKeyOf } from '../keys/cidr.ts';
import { type Pattern, readPattern } from '../keys/pattern.ts';
import type { Router } from '../router/router.ts';

export type ControlKind = 'ban' | 'override' | 'reset';

export interface ControlRecord {
  readonly kind: ControlKind;
  /** As an operator writes it: a ban may be of a pattern. */
  readonly key: string;
  /** The key is not valid UTF-8: `key` has one character per byte. */
  readonly isBinary?: boolean | undefined;
  /** The name of one limit; left out: all. */
  readonly limit?: string | undefined;
  /** override: the rule. */
  readonly rule?: unknown;
  /** Unix time. */
  readonly until: Millis;
  readonly setAt: Millis;
  /** Who set it, or why. */
  readonly note?: string | undefined;
  readonly isRemoved?: boolean | undefined;
  /** Names the admin token that it was set under; undefined: there was none, and peers do not get it. */
  readonly by?: string | undefined;
  /** A peer has sent it, so it acts in limits that peers share. */
  readonly isFromPeer?: boolean | undefined;
  /** It replaced a longer one with the same id, of which copies may last until then. */
  readonly coversUntil?: Millis | undefined;
}

/** A longer ban belongs into the deny list of the configuration. */
const MAX_DURATION_MS: Millis = 366 * 24 * 3_600_000;

const MAX_NOTE_CHARS = 200;
const MAX_KEY_CHARS = 1000;

/** The key or pattern of a control. */
export type ControlKey = Pick<ControlRecord, 'key' | 'isBinary'>;
export type ControlId = ControlKey & Pick<ControlRecord, 'kind' | 'limit'>;

export const idOf = ({ kind, key, isBinary, limit = '' }: ControlId): string =>
  `${kind} ${isBinary ? 'bytes' : ''} ${limit} ${key}`;

/** Until when the record is needed against older ones with the same id. */
export const coveredUntil = ({ until, coversUntil = 0 }: ControlRecord): Millis =>
  Math.max(until, coversUntil);

/** The removal of a control. It has no rule and no note, so that it is never too long for peers. */
export const removalOf = (record: ControlRecord, setAt = record.setAt): ControlRecord => {
  const { kind, key, isBinary, limit, by, isFromPeer } = record;
  const id = { kind, key, isBinary, limit, by, isFromPeer };
  return { ...id, until: coveredUntil(record), setAt, isRemoved: true };
};

/** The record as of now: one that has ended and is still needed against older ones is a removal. */
export const recordAt = (record: ControlRecord, now: Millis): ControlRecord =>
  record.until <= now && coveredUntil(record) > now ? removalOf(record) : record;

/** The record with an end that an operator could have set: that of a peer with a wrong clock may be years away. */
export const withinMaxDuration = (record: ControlRecord, now: Millis): ControlRecord => {
  const last = now + MAX_DURATION_MS;
  if (coveredUntil(record) <= last) return record;
  const { until, coversUntil } = record;
  const covers = coversUntil === undefined ? {} : { coversUntil: Math.min(coversUntil, last) };
  return { ...record, until: Math.min(until, last), ...covers };
};

export const binaryKeyOf = ({ key, isBinary }: ControlKey): string =>
  isBinary ? key : toBinaryKey(key);

/** The key that limits count it under: the network of an IPv6 address. */
export function canonicalKeyOf(
  record: ControlKey,
  router: Pick<Router, 'canonicalKey'> | undefined,
): string {
  const binaryKey = binaryKeyOf(record);
  return router?.canonicalKey(binaryKey) ?? binaryKey;
}

/** A binary key as the field `key` of a request: text, or bytes if it is not UTF-8. */
export function keyFieldOf(binaryKey: string): string | { readonly bytes: string } {
  const text = toKeyText(binaryKey);
  return toBinaryKey(text) === binaryKey ? text : { bytes: binaryKey };
}

/** The pattern of a ban: an exact key, a glob, or whatever else a list accepts as a string. @throws {ConfigError} */
export function controlPatternOf({ key, isBinary }: ControlKey): Pattern {
  if (isBinary) return bytesPattern(key);
  const pattern = readPattern(key, 'key');
  if (pattern.exactKey === undefined && pattern.literalPrefix === '' && pattern.specificity === 0)
    throw new ConfigError('key', 'a key, or a pattern that does not match all keys', key);
  return pattern;
}

const bytesPattern = (key: string): Pattern => ({
  ...readPattern({ exact: key }, 'key'),
  text: toKeyText(key),
  exactKey: key,
  literalPrefix: key,
  matches: (candidate) => candidate === key,
});

/** Describes the effect of a ban of a pattern, for replies; undefined if it bans one key or one address. */
export function patternNoteOf(record: ControlRecord): string | undefined {
  const { kind, key, isBinary } = record;
  if (kind !== 'ban' || isBinary) return undefined;
  const { exactKey, network } = controlPatternOf(record);
  const isOne = exactKey !== undefined || network?.prefixBits === 128;
  return isOne ? undefined : `bans every key that matches ${key}`;
}

/**
 * `alice` or a pattern; `{ exact: 'a*b' }` for a key that reads like a pattern; `{ bytes: 'k\xff' }` for a key that is not
 * UTF-8: one character per byte. @throws {ConfigError}
 */
export function readKey(given: unknown): ControlKey {
  const form = isRecord(given) ? Object.keys(given).join() : undefined;
  if (!isRecord(given) || (form !== 'exact' && form !== 'bytes'))
    return { key: usualKeyOf(readKeyText(given)) };
  const text = readKeyText(given[form]);
  const key = form === 'exact' ? toBinaryKey(text) : text;
  if (!isBinaryKey(key)) throw new ConfigError('key.bytes', 'one character per byte', key);
  if (key.length > MAX_KEY_CHARS)
    throw new ConfigError('key.exact', `at most ${MAX_KEY_CHARS} bytes`, text);
  const field = keyFieldOf(key);
  return typeof field === 'string' && isExactText(field) ? { key: field } : { key, isBinary: true }; // taken literally by every version
}

/** A network or an IPv6 address has several spellings, of which one identifies the control. */
function usualKeyOf(key: string): string {
  const { network } = readPattern(key, 'key');
  if (!network) return key;
  const usual = networkKeyOf(network);
  const { network: same, exactKey } = readPattern(usual, 'key');
  const isSame = exactKey !== undefined || JSON.stringify(same) === JSON.stringify(network);
  return isSame ? usual : key; // the text before it may read as a part of it
}

/** True if a list reads the text as one key. */
function isExactText(text: string): boolean {
  try {
    return readPattern(text, 'key').exactKey !== undefined;
  } catch (error) {
    if (error instanceof ConfigError) return false;
    throw error;
  }
}

/** An exact key, in any of these forms. @throws {ConfigError} for a pattern */
export function readExactKey(given: unknown): ControlKey {
  const read = readKey(given);
  const { key } = read;
  if (read.isBinary) {
    const field = keyFieldOf(key);
    return typeof field === 'string' ? { key: addressKeyOf(field) } : read;
  }
  const { exactKey, network } = readPattern(key, 'key');
  if (exactKey !== undefined || (network && !key.includes('/'))) return read;
  const expected =
    'an exact key, not a pattern (only bans take patterns); write { exact: … } for a key that contains * or ?';
  throw new ConfigError('key', expected, key);
}

/** @throws {ConfigError} unless it is a non-empty string of bounded length */
function readKeyText(key: unknown): string {
  const expected = `a string of 1 to ${MAX_KEY_CHARS} characters, or { exact: … } around one`;
  if (typeof key === 'string' && key.length > 0 && key.length <= MAX_KEY_CHARS) return key;
  throw new ConfigError('key', expected, key);
}

const isBinaryKey = (key: string): boolean => Buffer.from(key, 'latin1').toString('latin1') === key;

/** The fields that all controls with an expiry have. */
export function readExpiry(fields: OptionReader): { forMs: Millis; note?: string } {
  const forMs = fields.duration('for');
  if (!(forMs >= 1000 && forMs <= MAX_DURATION_MS))
    fields.throwFor('for', 'a duration from 1 second to 366 days, such as 1h');
  const note = readNote(fields);
  return note === undefined ? { forMs } : { forMs, note };
}

function readNote(fields: OptionReader): string | undefined {
  const note = fields.get('note');
  if (note === undefined || note === '') return undefined;
  if (typeof note !== 'string' || note.length > MAX_NOTE_CHARS)
    fields.throwFor('note', `a string of at most ${MAX_NOTE_CHARS} characters`);
  return String(note);
}

/** True for a record of a snapshot or of a peer that has the right form. */
export function isControlRecord(value: unknown): value is ControlRecord {
  if (!isRecord(value)) return false;
  const { kind, key, isBinary, limit, until, setAt, note, by, coversUntil = until } = value;
  return (
    ['ban', 'override', 'reset'].includes(String(kind)) &&
    typeof key === 'string' &&
    key.length > 0 &&
    key.length <= MAX_KEY_CHARS &&
    (isBinary === undefined || (isBinary === true && isBinaryKey(key))) &&
    [limit, by].every((text) => text === undefined || typeof text === 'string') &&
    [setAt, until, coversUntil].every(Number.isFinite) &&
    (note === undefined || (typeof note === 'string' && note.length <= MAX_NOTE_CHARS))
  );
}
