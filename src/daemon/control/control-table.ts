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
import type { Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import {
  binaryKeyOf,
  type ControlId,
  type ControlRecord,
  controlPatternOf,
  idOf,
} from './control-record.ts';

/** More keys than this belong into the configuration. */
export const MAX_CONTROLS = 10_000;

/** Removals and resets that peers can still learn of. Of more, the oldest are dropped. */
const MAX_PASSING = 10_000;

/** The field that the error for one control too many names. */
export const CONTROLS_FIELD = 'controls';

interface Ban {
  readonly record: ControlRecord;
  readonly pattern: Pattern;
}

/** Called with each record that took effect, and each that ended. */
export interface ControlListener {
  /** `replaced` has not ended by itself. */
  onSet(record: ControlRecord, replaced: ControlRecord | undefined): void;
  onEnd(record: ControlRecord): void;
  /** After one or more of them; with the binary key of a ban if that is all that has changed. */
  onChange(onlyKey?: string): void;
}

export class ControlTable {
  readonly #clock: Clock;
  readonly #listener: ControlListener;
  /** In effect. */
  readonly #records = new Map<string, ControlRecord>();
  /** Removals and resets: for peers, and against older copies of what was removed. */
  readonly #passing = new Map<string, ControlRecord>();
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
    const { ban, override } = this.counts;
    return ban + override;
  }

  /** Bans and overrides in effect. */
  get counts(): Readonly<Record<'ban' | 'override', number>> {
    const ban = this.#bansByKey.size + this.#bansByPattern.size;
    return { ban, override: this.#overrides.size };
  }

  /** All records, removals and resets included: what peers need. */
  get records(): readonly ControlRecord[] {
    return [...this.#records.values(), ...this.#passing.values()];
  }

  /** Bans and overrides in effect, in the order in which they were set. */
  get active(): readonly ControlRecord[] {
    return [...this.#records.values()];
  }

  /** The record with the same id, removals included. */
  recordOf(record: ControlId): ControlRecord | undefined {
    return this.find(record) ?? this.#passing.get(idOf(record));
  }

  /** The same if it is in effect. */
  find(record: ControlId): ControlRecord | undefined {
    return this.#records.get(idOf(record));
  }

  /**
   * Puts records into effect that are newer than the known ones, and returns them.
   * Removals and resets always fit.
   * @throws {ConfigError} if there is no place, and nothing changes; for an invalid pattern
   */
  put(records: readonly ControlRecord[]): readonly ControlRecord[] {
    const now = this.#clock.now();
    const newer = records.filter((record) => {
      const known = this.recordOf(record);
      return record.until > now && (known === undefined || record.setAt > known.setAt);
    });
    if (newer.length === 0) return newer;
    const added = newer.filter((record) => !isPassing(record) && !this.find(record)).length;
    const count = this.#records.size + added;
    const expected = `at most ${MAX_CONTROLS} of them: remove some, or use the configuration`;
    if (added > 0 && count > MAX_CONTROLS) throw new ConfigError(CONTROLS_FIELD, expected, count);
    let onlyKey: string | undefined;
    for (const record of newer) onlyKey = this.#apply(record)?.exactKey;
    this.#scheduleExpiry(Math.min(...newer.map(({ until }) => until)));
    this.#listener.onChange(newer.length === 1 ? onlyKey : undefined);
    return newer;
  }

  banOf(key: string): Ban | undefined {
    const exact = this.#bansByKey.get(key);
    if (exact !== undefined || this.#bansByPattern.size === 0) return exact;
    this.#patternIndex ??= PatternIndex.of(
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
    const { kind, key, limit = '' } = record;
    const id = idOf(record);
    const known = this.#records.get(id);
    const pattern = kind === 'ban' ? controlPatternOf(record) : undefined;
    if (known) this.#unindex(known, pattern);
    this.#records.delete(id); // so that it is the last entry: the newest
    this.#passing.delete(id);
    if (isPassing(record)) {
      this.#pass(id, record);
      if (known) this.#listener.onEnd(known);
      return pattern;
    }
    this.#records.set(id, record);
    if (pattern) {
      const ban = { record, pattern };
      if (pattern.exactKey === undefined) this.#bansByPattern.set(key, ban);
      else this.#bansByKey.set(pattern.exactKey, ban);
      this.#patternIndex = undefined;
    } else if (kind === 'override') this.#overrides.set(`${limit} ${binaryKeyOf(record)}`, record);
    this.#listener.onSet(record, known);
    return pattern;
  }

  #pass(id: string, record: ControlRecord): void {
    this.#passing.set(id, record);
    if (this.#passing.size <= MAX_PASSING) return;
    const [oldest] = this.#passing.keys();
    this.#passing.delete(oldest);
  }

  #unindex(record: ControlRecord, pattern?: Pattern): void {
    const { kind, key, limit = '' } = record;
    if (kind === 'ban') {
      const { exactKey } = pattern ?? controlPatternOf(record);
      if (exactKey === undefined) this.#bansByPattern.delete(key);
      else this.#bansByKey.delete(exactKey);
      this.#patternIndex = undefined;
    } else if (kind === 'override') this.#overrides.delete(`${limit} ${binaryKeyOf(record)}`);
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
    let hasEnded = false;
    for (const record of this.records) {
      if (record.until > now) {
        next = Math.min(next, record.until);
        continue;
      }
      if (!isPassing(record)) {
        this.#records.delete(idOf(record));
        this.#unindex(record);
        this.#listener.onEnd(record);
        hasEnded = true;
      } else this.#passing.delete(idOf(record));
    }
    this.#scheduleExpiry(next);
    if (hasEnded) this.#listener.onChange();
  }
}

/** True for a removal or a reset: nothing is in effect. */
const isPassing = ({ kind, isRemoved = false }: ControlRecord): boolean =>
  kind === 'reset' || isRemoved;
