/**
 * The denied keys of one limit: how often each was denied lately and in the last hours, and single denials.
 *
 *     denial ──▶ counts of the last seconds and hours (`key-counts/span-counts.ts`)
 *        └─────▶ ring of recent denials: one entry per key, rule and 10 s, with the number of denials
 *
 * Each rule has its own entry: a wait of 2 ms by one rule must not stand for a wait of 58 s by another. Counting needs
 * the key's hash only. The key itself is decoded when a new entry begins, which GCRA bounds, or when a key without a
 * name was denied often. So not every denial decodes its key.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyHash } from '../../core/hash.ts';
import { shortenKey } from '../key-counts/shorten-key.ts';
import { SpanCounts } from '../key-counts/span-counts.ts';

/** Recent denials of one limit; with one denied key they reach back for more than an hour. */
const MAX_RECENT = 512;

/** Entries begin at this interval, in bursts of up to 256: at least 12 s of a flood of different keys stay visible. */
const ENTRY_INTERVAL_MS: Millis = 50;
const ENTRY_TOLERANCE_MS: Millis = 255 * ENTRY_INTERVAL_MS;

/** Entries of a key within 10 s, one per rule: a key that many rules deny in turn does not push out others. */
const MAX_ENTRY_RULES = 8;

/** Denials within an interval after which a key without an entry gets its name. */
const NAMED_AFTER = 8;

/** The first of several denials. */
export interface Denial extends KeyHash {
  readonly key: string;
  readonly at: Millis;
  readonly cost: number;
  /** The rule that refused, of a limit with several. */
  readonly rule: string | undefined;
  /** `remaining` at the denial; undefined if nothing is counted, or until a remote backend has replied. */
  remaining: number | undefined;
  retryAfterMs: Millis;
}

/** Denials of one key by one rule of a limit within 10 s. A class, so that V8 writes its numbers in place. */
export class RecentDenial {
  readonly key: string;
  readonly first: Denial;
  lastAt: Millis;
  denied = 1;
  /** The entry of the same key and 10 s that began before this one, of another rule. */
  readonly #previous: RecentDenial | undefined;
  readonly #ruleCount: number;

  constructor(first: Denial, previous: RecentDenial | undefined) {
    this.#previous = previous;
    this.#ruleCount = previous === undefined ? 1 : previous.#ruleCount + 1;
    this.key = previous === undefined ? shortenKey(first.key) : previous.key;
    this.first = { ...first, key: this.key };
    this.lastAt = first.at;
  }

  get hasAllRules(): boolean {
    return this.#ruleCount >= MAX_ENTRY_RULES;
  }

  /** This entry or an earlier one, of the same key and 10 s. */
  ofRule(rule: string | undefined): RecentDenial | undefined {
    let entry: RecentDenial | undefined = this;
    while (entry !== undefined && entry.first.rule !== rule) entry = entry.#previous;
    return entry;
  }
}

interface DeniedKey {
  readonly key: string;
  /** The entry that began last. */
  readonly recent: RecentDenial | undefined;
}

/** The method that the caller has to call after `count`: none, `setName` or `setDetails`. */
export type Wanted = 'nothing' | 'name' | 'details';

export class DeniedKeys {
  /** When a call was last denied. */
  lastAt: Millis = Number.NEGATIVE_INFINITY;
  readonly counts = new SpanCounts<DeniedKey>();
  /** The slot of the last counted key. */
  #slot = 0;
  readonly #ring: RecentDenial[] = [];
  #oldest = 0;
  /** When the next entry is due, as in GCRA. */
  #entryDueAt: Millis = Number.NEGATIVE_INFINITY;

  /** Counts a denial by a rule. */
  count(low: number, high: number, now: Millis, rule: string | undefined): Wanted {
    this.lastAt = now;
    const slot = this.counts.add(low, high, now);
    const known = this.counts.valueAt(slot);
    const recent = known?.recent?.ofRule(rule);
    if (recent !== undefined) {
      recent.denied++;
      recent.lastAt = now;
      return 'nothing';
    }
    if (known?.recent?.hasAllRules) return 'nothing';
    this.#slot = slot;
    if (this.#mayBeginEntry(now)) return 'details';
    return known === undefined && this.counts.hitsAt(slot) >= NAMED_AFTER ? 'name' : 'nothing';
  }

  setName(key: string): void {
    this.counts.setValueAt(this.#slot, { key: shortenKey(key), recent: undefined });
  }

  /** Begins an entry for the denial that was just counted. */
  setDetails(denial: Denial): Denial {
    const recent = new RecentDenial(denial, this.counts.valueAt(this.#slot)?.recent);
    this.counts.setValueAt(this.#slot, { key: recent.key, recent });
    this.#ring[this.#oldest] = recent;
    this.#oldest = (this.#oldest + 1) % MAX_RECENT;
    return recent.first;
  }

  /** Newest first, as far as the ring reaches. */
  *recent(): Iterable<RecentDenial> {
    const { length } = this.#ring;
    for (let n = 1; n <= length; n++)
      yield this.#ring[(this.#oldest - n + MAX_RECENT) % MAX_RECENT];
  }

  #mayBeginEntry(now: Millis): boolean {
    if (this.#entryDueAt - now > ENTRY_TOLERANCE_MS) return false;
    this.#entryDueAt = Math.max(this.#entryDueAt, now) + ENTRY_INTERVAL_MS;
    return true;
  }
}
