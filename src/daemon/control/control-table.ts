/**
 * The controls of a daemon: bounded, each with its expiry, found by key.
 *
 *     operator, snapshot, peer ──▶ put ──▶ newer than the known record? ──▶ onChange: the router forgets cached routes
 *                                                                             ▲
 *                                          one timer for the next expiry ─────┘
 *
 * Exact keys are found in a map. Patterns of bans are indexed again at the first lookup after a change.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { toBinaryKey } from '../keys/binary-key.ts';
import type { Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import { type ControlRecord, idOf, readControlPattern } from './control-record.ts';

/** More keys than this belong into the configuration. Removals count until they expire. */
export const MAX_CONTROLS = 10_000;

/** The field that the error for one control too many names. */
export const CONTROLS_FIELD = 'controls';

interface Ban {
  readonly record: ControlRecord;
  readonly pattern: Pattern;
}

/** Called with each record that took effect, and each that ended. */
export interface ControlListener {
  onSet(record: ControlRecord): void;
  onEnd(record: ControlRecord): void;
  /** After one or more of them; with the binary key of a ban if that is all that has changed. */
  onChange(onlyKey?: string): void;
}

export class ControlTable {
  readonly #clock: Clock;
  readonly #listener: ControlListener;
  readonly #records = new Map<string, ControlRecord>();
  readonly #bansByKey = new Map<string, Ban>();
  readonly #bansByPattern = new Map<string, Ban>();
  #patternIndex: PatternIndex<Ban> | undefined;
  /** By limit and binary key. */
  readonly #overrides = new Map<string, ControlRecord>();
  #cancelExpiry = (): void => {};
  #expiryAt: Millis = Infinity;

  constructor(clock: Clock, listener: ControlListener) {
    this.#clock = clock;
    this.#listener = listener;
  }

  /** Controls in effect. */
  get size(): number {
    return this.#bansByKey.size + this.#bansByPattern.size + this.#overrides.size;
  }

  /** All records, removals included: what a snapshot and peers need. */
  get records(): readonly ControlRecord[] {
    return [...this.#records.values()];
  }

  /** Bans and overrides in effect, in the order in which they were set. */
  get active(): readonly ControlRecord[] {
    return this.records.filter(({ kind, isRemoved }) => kind !== 'reset' && !isRemoved);
  }

  /** The record with the same id, removals included. */
  recordOf(record: Pick<ControlRecord, 'kind' | 'key' | 'limit'>): ControlRecord | undefined {
    return this.#records.get(idOf(record));
  }

  /** The same if it is in effect. */
  find(record: Pick<ControlRecord, 'kind' | 'key' | 'limit'>): ControlRecord | undefined {
    const found = this.recordOf(record);
    return found?.isRemoved ? undefined : found;
  }

  /**
   * Puts records into effect that are newer than the known ones, and returns them.
   * @throws {ConfigError} if there is no place, and nothing changes; for an invalid pattern
   */
  put(records: readonly ControlRecord[]): readonly ControlRecord[] {
    const now = this.#clock.now();
    const newer = records.filter((record) => {
      const known = this.#records.get(idOf(record));
      return record.until > now && (known === undefined || record.setAt > known.setAt);
    });
    if (newer.length === 0) return newer;
    const added = newer.filter((record) => !this.#records.has(idOf(record))).length;
    const count = this.#records.size + added;
    const expected = `at most ${MAX_CONTROLS} of them: remove some, or use the configuration`;
    if (count > MAX_CONTROLS) throw new ConfigError(CONTROLS_FIELD, expected, count);
    let onlyKey: string | undefined;
    for (const record of newer) onlyKey = this.#apply(record)?.exactKey;
    this.#scheduleExpiry(Math.min(...newer.map(({ until }) => until)));
    this.#listener.onChange(newer.length === 1 ? onlyKey : undefined);
    return newer;
  }

  banOf(key: string): Ban | undefined {
    const exact = this.#bansByKey.get(key);
    if (exact !== undefined || this.#bansByPattern.size === 0) return exact;
    this.#patternIndex ??= new PatternIndex(
      [...this.#bansByPattern.values()],
      ({ pattern }) => pattern,
    );
    return this.#patternIndex.best(key);
  }

  overrideOf(limit: string, key: string): ControlRecord | undefined {
    return this.#overrides.size === 0 ? undefined : this.#overrides.get(`${limit} ${key}`);
  }

  close(): void {
    this.#cancelExpiry();
  }

  /** Returns the pattern of a ban. */
  #apply(record: ControlRecord): Pattern | undefined {
    const { kind, key, limit = '', isRemoved = false } = record;
    const known = this.#records.get(idOf(record));
    const pattern = kind === 'ban' ? readControlPattern(key) : undefined;
    if (known && !known.isRemoved) this.#end(known, pattern);
    this.#records.delete(idOf(record)); // so that it is the last entry: the newest
    this.#records.set(idOf(record), record);
    if (isRemoved) return pattern;
    if (pattern) {
      const ban = { record, pattern };
      if (pattern.exactKey === undefined) this.#bansByPattern.set(key, ban);
      else this.#bansByKey.set(pattern.exactKey, ban);
      this.#patternIndex = undefined;
    } else if (kind === 'override') this.#overrides.set(`${limit} ${toBinaryKey(key)}`, record);
    this.#listener.onSet(record);
    return pattern;
  }

  #end(record: ControlRecord, pattern?: Pattern): void {
    const { kind, key, limit = '' } = record;
    if (kind === 'ban') {
      const { exactKey } = pattern ?? readControlPattern(key);
      if (exactKey === undefined) this.#bansByPattern.delete(key);
      else this.#bansByKey.delete(exactKey);
      this.#patternIndex = undefined;
    } else if (kind === 'override') this.#overrides.delete(`${limit} ${toBinaryKey(key)}`);
    this.#listener.onEnd(record);
  }

  /** Wakes at the given instant, if no record expires before. */
  #scheduleExpiry(at: Millis): void {
    if (at >= this.#expiryAt) return;
    this.#cancelExpiry();
    this.#expiryAt = at;
    this.#cancelExpiry = schedule(this.#clock, at, () => this.#expire(), false);
  }

  #expire(): void {
    const now = this.#clock.now();
    this.#expiryAt = Infinity;
    let next = Infinity;
    for (const [id, record] of this.#records) {
      if (record.until > now) {
        next = Math.min(next, record.until);
        continue;
      }
      this.#records.delete(id);
      if (!record.isRemoved) this.#end(record);
    }
    this.#scheduleExpiry(next);
    this.#listener.onChange();
  }
}
