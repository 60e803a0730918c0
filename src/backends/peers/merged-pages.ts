/**
 * Pages of a state transfer that were merged before all their included reports arrived. When such a report arrives, its
 * hits do not count again for the keys of the page.
 *
 *     page with key K, includes B 4 ──▶ merged
 *     report B 4: K 1 hit, L 1 hit ───▶ L counts; the page already includes K
 */

import type { Millis } from '../../core/clock.ts';
import type { PageContents, ReportSet } from './included-reports.ts';
import {
  ENTRY_WIDTH,
  type Entries,
  type KeyRefillTimes,
  MAX_PEERS,
  type NodeId,
} from './messages.ts';
import { keyOf } from './report-log.ts';

/** The most pages that are remembered. Hits of a forgotten page may count twice. */
const MAX_PAGES = 1024;

/** A lost report is retransmitted, and an unknown node found, within this time, unless most datagrams are lost. */
const REMEMBERED_MS: Millis = 10_000;

/** Equal to the time for which other nodes remember a node that is gone. */
const ORIGINS_MS: Millis = 120_000;

interface MergedPage {
  readonly limit: number;
  readonly keys: ReadonlySet<string>;
  readonly contents: PageContents;
  readonly mergedAt: Millis;
}

export class MergedPages {
  #pages: MergedPage[] = [];
  /** By origin: all pages of the transfer include all reports up to `all`, and none includes a report after `any`. */
  #counted: Map<NodeId, { readonly all: number; readonly any: number }> | undefined;
  /** Whether the lists of all pages were complete: then no page includes reports of an unlisted node. */
  #areComplete = true;
  #mergedAt: Millis = -Infinity;
  #isOfAllLimits = true;

  /** Starts a transfer of all limits, or of an added limit. */
  begin(isOfAllLimits: boolean): void {
    this.#isOfAllLimits = isOfAllLimits;
  }

  clear(): void {
    this.#pages = [];
    this.#counted = undefined;
  }

  /** Must be called for every merged page. */
  note(contents: PageContents, now: Millis): void {
    if (!this.#knowsOrigins(now)) this.#counted = undefined;
    this.#mergedAt = now;
    if (this.#isOfAllLimits) this.#noteCounted(contents);
  }

  /** Remembers the keys of a page that includes reports that have not arrived. */
  add(
    limit: number,
    contents: PageContents,
    page: { readonly refillTimes: KeyRefillTimes; readonly width: number },
    now: Millis,
  ): void {
    const keys = new Set<string>();
    for (let at = 0; at < page.refillTimes.length; at += page.width)
      keys.add(keyOf(page.refillTimes[at], page.refillTimes[at + 1]));
    if (this.#pages.length >= MAX_PAGES) this.#pages.shift();
    this.#pages.push({ limit, keys, contents, mergedAt: now });
  }

  #noteCounted(contents: PageContents): void {
    const isFirst = this.#counted === undefined;
    this.#areComplete = contents.isComplete && (isFirst || this.#areComplete);
    this.#counted ??= new Map();
    for (const { origin, highest } of contents.sets) {
      if (this.#counted.size >= MAX_PEERS && !this.#counted.has(origin)) continue;
      const { all, any } = this.#counted.get(origin) ?? { all: isFirst ? Infinity : 0, any: 0 };
      this.#counted.set(origin, { all, any: Math.max(any, highest) });
    }
    for (const [origin, { all, any }] of this.#counted)
      if (contents.isKnown(origin))
        this.#counted.set(origin, { all: Math.min(all, contents.contiguousTo(origin)), any });
  }

  /** For a node that is admitted now: all merged pages include its reports up to this one; undefined if unknown. */
  countedTo(origin: NodeId, now: Millis): number | undefined {
    if (!this.#knowsOrigins(now) || !this.#counted) return undefined;
    return this.#counted.get(origin)?.all ?? (this.#areComplete ? 0 : undefined);
  }

  #knowsOrigins(now: Millis): boolean {
    return now - this.#mergedAt <= ORIGINS_MS;
  }

  hasReportsOf(origin: NodeId, now: Millis): boolean {
    return this.#knowsOrigins(now) && this.#counted?.has(origin) === true;
  }

  /** Whether all merged pages include equal sets of a node's reports. */
  isSettled(origin: NodeId): boolean {
    const counted = this.#counted?.get(origin);
    return !counted || counted.all === counted.any;
  }

  /** Reports of nodes for which all merged pages are equal. */
  settledSets(now: Millis): ReportSet[] {
    if (!this.#knowsOrigins(now)) return [];
    return [...(this.#counted ?? [])]
      .filter(([origin]) => this.isSettled(origin))
      .map(([origin, { all }]) => ({ origin, highest: all, missing: [] }));
  }

  /** Tests pages whose included reports had not all arrived. */
  some(test: (contents: PageContents, mergedAt: Millis) => boolean): boolean {
    return this.#pages.some(({ contents, mergedAt }) => test(contents, mergedAt));
  }

  /** The entries of a report that no merged page includes. */
  withoutMerged(origin: NodeId, seq: number, entries: Entries, now: Millis): Entries {
    if (this.#pages.length === 0) return entries;
    this.#pages = this.#pages.filter(({ mergedAt }) => now - mergedAt <= REMEMBERED_MS);
    const pages = this.#pages.filter(({ contents }) => contents.has(origin, seq));
    if (pages.length === 0) return entries;
    const counted: number[] = [];
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const [limit, low, high] = entries.slice(at, at + ENTRY_WIDTH);
      const key = keyOf(low, high);
      const isMerged = pages.some((page) => page.limit === limit && page.keys.has(key));
      if (!isMerged) counted.push(...entries.slice(at, at + ENTRY_WIDTH));
    }
    return counted;
  }
}
