/**
 * A control: what an operator set at run time, for a key and a time. Snapshots and peers carry it in this form.
 *
 *     ban       the key, or all keys of a pattern, are denied
 *     override  the key has another rule in one limit
 *     reset     the consumption of the key was forgotten; kept for a while so that peers learn of it
 *
 * Of two records with the same id the one that was set later wins. A removal is a record too, for some minutes: an older
 * copy of the removed control that still travels cannot bring it back.
 */

import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, type OptionReader } from '../../core/options.ts';
import { type Pattern, readPattern } from '../keys/pattern.ts';

export type ControlKind = 'ban' | 'override' | 'reset';

export interface ControlRecord {
  readonly kind: ControlKind;
  /** As an operator writes it: a ban may be of a pattern. */
  readonly key: string;
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
}

/** A longer ban belongs into the deny list of the configuration. */
const MAX_DURATION_MS: Millis = 366 * 24 * 3_600_000;

const MAX_NOTE_CHARS = 200;
const MAX_KEY_CHARS = 1000;

export const idOf = ({
  kind,
  key,
  limit = '',
}: Pick<ControlRecord, 'kind' | 'key' | 'limit'>): string => `${kind} ${limit} ${key}`;

/** The pattern of a ban: an exact key, a glob, or whatever else a list accepts as a string. @throws {ConfigError} */
export function readControlPattern(key: unknown): Pattern {
  const pattern = readPattern(readKeyText(key), 'key');
  if (pattern.exactKey === undefined && pattern.literalPrefix === '' && pattern.specificity === 0)
    throw new ConfigError('key', 'a key, or a pattern that does not match all keys', key);
  return pattern;
}

/** @throws {ConfigError} unless it is a non-empty string of bounded length */
export function readKeyText(key: unknown): string {
  const expected = `a string of 1 to ${MAX_KEY_CHARS} characters`;
  if (typeof key === 'string' && key.length > 0 && key.length <= MAX_KEY_CHARS) return key;
  throw new ConfigError('key', expected, key);
}

/**
 * An exact key: `alice`, or `{ exact: 'a*b' }` for a key that reads like a pattern.
 * @throws {ConfigError} for a pattern
 */
export function readExactKey(given: unknown): string {
  if (isRecord(given) && Object.keys(given).join() === 'exact') return readKeyText(given.exact);
  const key = readKeyText(given);
  const { exactKey, network } = readPattern(key, 'key');
  if (exactKey !== undefined || (network && !key.includes('/'))) return key;
  const literal = JSON.stringify({ key: { exact: key } });
  const expected = `an exact key, not a pattern (only bans take patterns); a key that contains * or ? is written ${literal} in JSON over HTTP`;
  throw new ConfigError('key', expected, key);
}

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
  const { kind, key, limit, until, setAt, note } = value;
  return (
    ['ban', 'override', 'reset'].includes(String(kind)) &&
    typeof key === 'string' &&
    key.length > 0 &&
    key.length <= MAX_KEY_CHARS &&
    (limit === undefined || typeof limit === 'string') &&
    Number.isFinite(until) &&
    Number.isFinite(setAt) &&
    Number(until) - Number(setAt) <= MAX_DURATION_MS &&
    (note === undefined || (typeof note === 'string' && note.length <= MAX_NOTE_CHARS))
  );
}
