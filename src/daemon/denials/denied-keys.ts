/**
 * The denied keys of one limit: how often each was denied lately and in the last hours, and single denials.
 *
 *     denial ──▶ counts of these 10 s ──▶ of the 10 s before ──▶ of this hour ──▶ of the hour before
 *        └─────▶ ring of recent denials: one entry per key and 10 s, with the number of denials
 *
 * Counting needs the key's hash only. The key itself is asked for when a new entry begins, which GCRA bounds,
 * or when a key without a name was denied often. So a flood of denials of one key or of many does not decode each.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyHash } from '../../core/hash.ts';
import { type FrequentKey, FrequentKeys } from './frequent-keys.ts';

const INTERVAL_MS: Millis = 10_000;
const HOUR_MS: Millis = 3_600_000;

/** Recent denials of one limit; with one denied key they reach back for more than an hour. */
const MAX_RECENT = 512;

/** Entries begin at most so often, and 256 at once: at least 12 s of a flood of different keys stay visible. */
const ENTRY_INTERVAL_MS: Millis = 50;
const ENTRY_TOLERANCE_MS: Millis = 255 * ENTRY_INTERVAL_MS;

/** Denials within an interval after which a key without an entry gets its name. */
const NAMED_AFTER = 8;

/** Longer keys are cut. */
const MAX_KEY_CHARS = 200;

/** The first of several denials. */
export interface Denial extends KeyHash {
  readonly key: string;
  readonly at: Millis;
  readonly cost: number;
  /** The rule that refused, of a limit with several. */
  readonly rule: string | undefined;
  /** What was left; undefined if a remote backend decided, or nothing is counted. */
  readonly remaining: number | undefined;
  readonly retryAfterMs: Millis;
}

/** Denials of one key by one limit within 10 s. A class, so that V8 writes its numbers in place. */
export class RecentDenial {
  readonly key: string;
  readonly first: Denial;
  lastAt: Millis;
  denied = 1;

  constructor(first: Denial) {
    this.key = shorten(first.key);
    this.first = { ...first, key: this.key };
    this.lastAt = first.at;
  }
}

interface DeniedKey {
  readonly key: string;
  readonly recent: RecentDenial | undefined;
}

/** The last 10 to 20 s, or the last one to two hours. */
export type Span = 'now' | 'hour';

type KeyCount = Pick<FrequentKey<DeniedKey>, 'count' | 'error'>;

/** What the caller is to tell about a denial that was just counted. */
export type Wanted = 'nothing' | 'name' | 'details';

export class DeniedKeys {
  /** When a call was last denied. */
  lastAt: Millis = Number.NEGATIVE_INFINITY;
  #current = new FrequentKeys<DeniedKey>();
  #previous: FrequentKeys<DeniedKey> | undefined;
  #hour: FrequentKeys<DeniedKey> | undefined;
  #previousHour: FrequentKeys<DeniedKey> | undefined;
  #intervalEnd: Millis = Number.NEGATIVE_INFINITY;
  #hourEnd: Millis = Number.NEGATIVE_INFINITY;
  /** The slot of the last counted key. */
  #slot = 0;
  readonly #ring: RecentDenial[] = [];
  #oldest = 0;
  /** When the next entry is due, as in GCRA. */
  #entryDueAt: Millis = Number.NEGATIVE_INFINITY;

  /** Counts a denial. Unless nothing is wanted, `setName` or `setDetails` is to follow. */
  count(low: number, high: number, now: Millis): Wanted {
    if (now >= this.#intervalEnd) this.#advance(now);
    this.lastAt = now;
    const slot = this.#current.add(low, high);
    const known = this.#current.valueAt(slot);
    const recent = known?.recent;
    if (recent !== undefined) {
      recent.denied++;
      recent.lastAt = now;
      return 'nothing';
    }
    this.#slot = slot;
    if (this.#mayBeginEntry(now)) return 'details';
    return known === undefined && this.#current.hitsAt(slot) >= NAMED_AFTER ? 'name' : 'nothing';
  }

  setName(key: string): void {
    this.#current.setValueAt(this.#slot, { key: shorten(key), recent: undefined });
  }

  /** Begins an entry for the denial that was just counted. */
  setDetails(denial: Denial): void {
    const recent = new RecentDenial(denial);
    this.#current.setValueAt(this.#slot, { key: recent.key, recent });
    this.#ring[this.#oldest] = recent;
    this.#oldest = (this.#oldest + 1) % MAX_RECENT;
  }

  /** Denials of all keys in the span. */
  denied(span: Span, now: Millis): number {
    return this.#tables(span, now).reduce((sum, { total }) => sum + total, 0);
  }

  /** The keys that were denied most in the span. */
  top(span: Span, now: Millis, max: number): FrequentKey<DeniedKey>[] {
    const merged = new FrequentKeys<DeniedKey>();
    for (const table of this.#tables(span, now)) merged.merge(table);
    return merged.top(max);
  }

  /** How often a key was denied in the span, and the error of that; undefined if no table has it. */
  countOf({ low, high }: KeyHash, span: Span, now: Millis): KeyCount | undefined {
    let [count, error] = [0, 0];
    for (const table of this.#tables(span, now)) {
      const found = table.get(low, high);
      count += found?.count ?? 0;
      error += found?.error ?? table.maxUntracked;
    }
    return count === 0 ? undefined : { count, error };
  }

  #tables(span: Span, now: Millis): FrequentKeys<DeniedKey>[] {
    if (now >= this.#intervalEnd) this.#advance(now);
    const hours = span === 'hour' ? [this.#previousHour, this.#hour] : [];
    const tables = [...hours, this.#previous, this.#current];
    return tables.filter((table) => table !== undefined);
  }

  /** Newest first, as far as the ring reaches. */
  *recent(): Iterable<RecentDenial> {
    const { length } = this.#ring;
    for (let n = 1; n <= length; n++)
      yield this.#ring[(this.#oldest - n + MAX_RECENT) % MAX_RECENT];
  }

  /** Begins a new interval; what is older than the one before it goes to the counts of the hour. */
  #advance(now: Millis): void {
    const isNext = now < this.#intervalEnd + INTERVAL_MS;
    this.#intervalEnd = now - (now % INTERVAL_MS) + INTERVAL_MS;
    if (this.#previous) this.#addToHour(this.#previous, now);
    if (this.#current.total > 0 && !isNext) this.#addToHour(this.#current, now);
    this.#previous = isNext && this.#current.total > 0 ? this.#current : undefined;
    if (this.#current.total > 0) this.#current = new FrequentKeys();
    this.#advanceHour(now);
  }

  #addToHour(counts: FrequentKeys<DeniedKey>, now: Millis): void {
    this.#advanceHour(now);
    this.#hour ??= new FrequentKeys();
    this.#hour.merge(counts);
  }

  #advanceHour(now: Millis): void {
    if (now < this.#hourEnd) return;
    this.#previousHour = now < this.#hourEnd + HOUR_MS ? this.#hour : undefined;
    this.#hour = undefined;
    this.#hourEnd = now - (now % HOUR_MS) + HOUR_MS;
  }

  #mayBeginEntry(now: Millis): boolean {
    if (this.#entryDueAt - now > ENTRY_TOLERANCE_MS) return false;
    this.#entryDueAt = Math.max(this.#entryDueAt, now) + ENTRY_INTERVAL_MS;
    return true;
  }
}

/** A copy: the key may be a slice of a request and keep all of it alive. */
const shorten = (key: string): string =>
  Buffer.from(key.length > MAX_KEY_CHARS ? key.slice(0, MAX_KEY_CHARS) : key, 'latin1').toString(
    'latin1',
  );
