/**
 * Reports that this node has sent or counted during a state transfer, for the pages that do not include them.
 *
 *     page: A 1–7, B 1–3          log: A 7 8, B 4, own 1 2          added to the page: A 8, B 4, own 1 2
 *
 * A page can be merged if it includes all reports that were counted before the log started. Reports that a page
 * includes are no longer needed: the next pages of that source include them, too.
 */

import type { PageContents } from './included-reports.ts';
import { ENTRY_WIDTH, type Entries, type NodeId } from './messages.ts';

/** The most numbers in the log. Beyond it, the oldest reports are dropped, so that a page must include them. */
const MAX_LOGGED_NUMBERS = 200_000;

interface LoggedReport {
  readonly origin: NodeId;
  readonly seq: number;
  readonly entries: Entries;
}

/** Hits of a key. */
type HitsOf = (low: number, high: number) => number;

export const keyOf = (low: number, high: number): string => `${low} ${high}`;

export class ReportLog {
  #reports: LoggedReport[] = [];
  #numbers = 0;
  /** Reports up to these numbers were counted and are not in the log. */
  readonly #unlogged = new Map<NodeId, number>();
  #isOpen = true;

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Opens the log after these reports: pairs of origin and sequence number. */
  open(countedTo: Iterable<readonly [origin: NodeId, seq: number]>): void {
    this.close();
    this.#isOpen = true;
    for (const [origin, seq] of countedTo) this.#unlogged.set(origin, seq);
  }

  close(): void {
    this.#isOpen = false;
    this.#reports = [];
    this.#numbers = 0;
    this.#unlogged.clear();
  }

  add(origin: NodeId, seq: number, entries: Entries): void {
    if (!this.#isOpen) return;
    this.#reports.push({ origin, seq, entries });
    this.#numbers += entries.length;
    if (this.#numbers > MAX_LOGGED_NUMBERS)
      this.#drop(this.#reports.splice(0, this.#reports.length / 2 + 1));
  }

  /** Whether a page includes all counted reports of an origin that are not in the log; `countedTo` at its admission. */
  isCovered(contents: PageContents, origin: NodeId, countedTo: number): boolean {
    const unlogged = Math.max(countedTo, this.#unlogged.get(origin) ?? 0);
    return !contents.isKnown(origin) || contents.contiguousTo(origin) >= unlogged;
  }

  /** The hits of a limit that are counted here and are not in the page. */
  hitsBeyond(contents: PageContents, limit: number): HitsOf {
    const hits = new Map<string, number>();
    for (const { origin, seq, entries } of this.#reports) {
      if (!contents.isKnown(origin) || contents.has(origin, seq)) continue;
      for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
        if (entries[at] !== limit) continue;
        const key = keyOf(entries[at + 1], entries[at + 2]);
        hits.set(key, (hits.get(key) ?? 0) + entries[at + 3]);
      }
    }
    return (low, high) => (hits.size === 0 ? 0 : (hits.get(keyOf(low, high)) ?? 0));
  }

  /** Drops logged reports that a merged page includes. */
  prune(contents: PageContents): void {
    for (const { origin } of contents.sets) this.#skip(origin, contents.contiguousTo(origin));
    const isIncluded = ({ origin, seq }: LoggedReport): boolean =>
      seq <= contents.contiguousTo(origin);
    const included = this.#reports.filter(isIncluded);
    if (included.length === 0) return;
    this.#reports = this.#reports.filter((report) => !isIncluded(report));
    this.#drop(included);
  }

  #drop(reports: readonly LoggedReport[]): void {
    for (const { origin, seq, entries } of reports) {
      this.#numbers -= entries.length;
      this.#skip(origin, seq);
    }
  }

  #skip(origin: NodeId, seq: number): void {
    this.#unlogged.set(origin, Math.max(seq, this.#unlogged.get(origin) ?? 0));
  }
}
