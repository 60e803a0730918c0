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
import { addressKeyOf } from '../keys/canonical-key.ts';
import type { Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import {
  binaryKeyOf,
  type ControlId,
  type ControlRecord,
  controlPatternOf,
  coveredUntil,
  idOf,
  recordAt,
} from './control-record.ts';

/** More keys than this belong into the configuration. */
export const MAX_CONTROLS = 10_000;

/** Removals, and as many resets. Beyond this the first to end are dropped: an old copy can restore these controls. */
export const MAX_PASSING = 10_000;

/** Records that are dropped together, as finding them means sorting all. */
const DROPPED_TOGETHER = 100;

/** The field that the error for one control too many names. */
export const CONTROLS_FIELD = 'controls';

interface Ban {
  readonly record: ControlRecord;
  readonly pattern: Pattern;
}

/** Called with each record that took effect, and each that ended. */
export interface ControlListener {
  /** `replaced`: a control with the same id that was in effect. */
  onSet(record: ControlRecord, replaced: ControlRecord | undefined): void;
  onEnd(record: ControlRecord): void;
  /** After one or more of them; with the binary key of a ban if that is all that has changed. */
  onChange(onlyKey?: string): void;
}

export class ControlTable {
  readonly #clock: Clock;
  readonly #listener: ControlListener;
  /** Controls in effect. */
  readonly #records = new Map<string, ControlRecord>();
  /** Removals and resets, for peers and against older copies. Resets are few and short: removals do not displace them. */
  readonly #passing = {
    removals: new Map<string, ControlRecord>(),
    resets: new Map<string, ControlRecord>(),
  };
  readonly #bansByKey = new Map<string, Ban>();
  readonly #bansByPattern = new Map<string, Ban>();
  #patternIndexes: { all?: PatternIndex<Ban>; own?: PatternIndex<Ban> } = {};
  /** Overrides by limit and binary key. */
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
    const { removals, resets } = this.#passing;
    return [...this.#records.values(), ...removals.values(), ...resets.values()];
  }

  /** Bans and overrides in effect, in the order in which they were set. */
  get active(): readonly ControlRecord[] {
    return [...this.#records.values()];
  }

  /** The record with this id, removals included. */
  recordOf(record: ControlId): ControlRecord | undefined {
    return this.find(record) ?? this.#passingOf(record).get(idOf(record));
  }

  /** The control with this id, if it is in effect. */
  find(record: ControlId): ControlRecord | undefined {
    return this.#records.get(idOf(record));
  }

  /**
   * Puts records into effect that are newer than the known ones, and returns them as they are kept.
   * Removals and resets always fit.
   * @throws {ConfigError} if there is no place, and nothing changes; for an invalid pattern
   */
  put(records: readonly ControlRecord[]): readonly ControlRecord[] {
    const newer = records
      .filter((record) => this.isNewer(record))
      .map((record) => this.#covering(record));
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

  /** True if the record has not ended, and none with the same id was set at that time or later. */
  isNewer(record: ControlRecord): boolean {
    const known = this.recordOf(record);
    const isKnown = known !== undefined && record.setAt <= known.setAt;
    return !isKnown && record.until > this.#clock.now();
  }

  /** Ends what is in effect, except the records with these ids. */
  retain(ids: ReadonlySet<string>): void {
    const ended = this.active.filter((record) => !ids.has(idOf(record)));
    for (const record of ended) this.#end(record);
    if (ended.length > 0) this.#listener.onChange();
  }

  /** The ban of a key. `isShared` says whether peers share a limit that applies to it: otherwise their bans do not. */
  banOf(key: string, isShared = () => true): Ban | undefined {
    const ban = this.#bansByKey.get(key) ?? this.#patternBanOf(key, 'all');
    const isForeign = ban?.record.isFromPeer && !isShared();
    return isForeign ? this.#patternBanOf(key, 'own') : ban;
  }

  #patternBanOf(key: string, which: 'all' | 'own'): Ban | undefined {
    if (this.#bansByPattern.size === 0) return undefined;
    this.#patternIndexes[which] ??= PatternIndex.of(
      [...this.#bansByPattern.values()].filter(
        ({ record }) => which === 'all' || !record.isFromPeer,
      ),
      ({ pattern }) => pattern,
    );
    return this.#patternIndexes[which].best(key);
  }

  overrideOf(limit: string, key: string): ControlRecord | undefined {
    if (this.#overrides.size === 0) return undefined;
    return this.#overrides.get(`${limit} ${addressKeyOf(key)}`);
  }

  close(): void {
    this.#cancelExpiry();
  }

  /** Returns the pattern of a ban. */
  #apply(record: ControlRecord): Pattern | undefined {
    const { kind, key } = record;
    const id = idOf(record);
    const known = this.#records.get(id);
    const pattern = kind === 'ban' ? controlPatternOf(record) : undefined;
    if (known) this.#unindex(known, pattern);
    this.#records.delete(id); // so that it is the last entry: the newest
    this.#passingOf(record).delete(id);
    if (isPassing(record)) {
      this.#pass(record);
      if (known) this.#listener.onEnd(known);
      return pattern;
    }
    this.#records.set(id, record);
    if (pattern) {
      const ban = { record, pattern };
      if (pattern.exactKey === undefined) this.#bansByPattern.set(key, ban);
      else this.#bansByKey.set(pattern.exactKey, ban);
      this.#patternIndexes = {};
    } else if (kind === 'override') this.#overrides.set(overrideIndexOf(record), record);
    this.#listener.onSet(record, known);
    return pattern;
  }

  #passingOf({ kind }: ControlId): Map<string, ControlRecord> {
    return kind === 'reset' ? this.#passing.resets : this.#passing.removals;
  }

  #pass(record: ControlRecord): void {
    const passing = this.#passingOf(record);
    if (passing.size >= MAX_PASSING) {
      const byEnd = [...passing].sort(([, a], [, b]) => a.until - b.until);
      for (const [id] of byEnd.slice(0, DROPPED_TOGETHER)) passing.delete(id);
    }
    passing.set(idOf(record), record);
  }

  /** The record, with the time for which copies of the one that it replaces may last. */
  #covering(record: ControlRecord): ControlRecord {
    const known = this.recordOf(record);
    if (!known || record.kind === 'reset') return record;
    const end = coveredUntil(known);
    if (end <= coveredUntil(record)) return record;
    return record.isRemoved ? { ...record, until: end } : { ...record, coversUntil: end };
  }

  #unindex(record: ControlRecord, pattern?: Pattern): void {
    const { kind, key } = record;
    if (kind === 'ban') {
      const { exactKey } = pattern ?? controlPatternOf(record);
      if (exactKey === undefined) this.#bansByPattern.delete(key);
      else this.#bansByKey.delete(exactKey);
      this.#patternIndexes = {};
    } else if (kind === 'override') this.#overrides.delete(overrideIndexOf(record));
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
      if (isPassing(record)) {
        this.#passingOf(record).delete(idOf(record));
        continue;
      }
      this.#end(record);
      hasEnded = true;
      const removal = recordAt(record, now);
      if (removal === record) continue;
      this.#pass(removal);
      next = Math.min(next, removal.until);
    }
    this.#scheduleExpiry(next);
    if (hasEnded) this.#listener.onChange();
  }

  #end(record: ControlRecord): void {
    this.#records.delete(idOf(record));
    this.#unindex(record);
    this.#listener.onEnd(record);
  }
}

/** An address has one override, however it is spelt. */
const overrideIndexOf = (record: ControlRecord): string =>
  `${record.limit ?? ''} ${addressKeyOf(binaryKeyOf(record))}`;

/** True for a removal or a reset: nothing is in effect. */
const isPassing = ({ kind, isRemoved = false }: ControlRecord): boolean =>
  kind === 'reset' || isRemoved;
