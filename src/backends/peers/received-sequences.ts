/**
 * The reports of a peer that have arrived: each counts once, and gaps are known.
 *
 *     1 2 3 4 5 6 ·  8 9 ·  11                 missing: 7 and 10
 *               ▲           ▲
 *        contiguousTo     highest
 */

import { isIn, MAX_MISSING_RANGES, type ReportSet } from './included-reports.ts';
import type { NodeId } from './messages.ts';

/** With more missing reports than this, they are skipped and not requested. */
const MAX_GAP = 4096;

export class ReceivedSequences {
  /** Reports up to this one are not requested: the state transfer includes their hits. */
  #countedTo: number;
  /** All reports up to this one have arrived or were skipped. */
  #contiguousTo: number;
  /** The highest sequence number that is known to exist. */
  #highest: number;
  readonly #outOfOrder = new Set<number>();
  /** Missing reports that were skipped. */
  lost = 0;

  /** Starts after `seq`. */
  constructor(seq: number) {
    this.#countedTo = seq;
    this.#contiguousTo = seq;
    this.#highest = seq;
  }

  get countedTo(): number {
    return this.#countedTo;
  }

  get highest(): number {
    return this.#highest;
  }

  get isComplete(): boolean {
    return this.#contiguousTo === this.#highest;
  }

  isCompleteTo(seq: number): boolean {
    return this.#contiguousTo >= Math.min(seq, this.#highest);
  }

  get missingCount(): number {
    return this.#highest - this.#contiguousTo - this.#outOfOrder.size;
  }

  has(seq: number): boolean {
    return seq <= this.#contiguousTo || this.#outOfOrder.has(seq);
  }

  /** Records a report; returns true if it is new. */
  accept(seq: number): boolean {
    if (this.has(seq)) return false;
    this.noteHighest(seq);
    if (seq <= this.#contiguousTo) return false; // skipped just now, because the gap is too large
    this.#outOfOrder.add(seq);
    this.#advance();
    return true;
  }

  /** Notes that the peer has sent a report with this number. */
  noteHighest(seq: number): void {
    if (seq <= this.#highest) return;
    this.#highest = seq;
    if (this.#highest - this.#contiguousTo > MAX_GAP) this.skipTo(this.#highest - MAX_GAP);
  }

  skipTo(seq: number): void {
    const to = Math.min(seq, this.#highest);
    if (to <= this.#contiguousTo) return;
    // Iterates over arrived reports, not missing ones: a peer may name a number that is far ahead.
    let lost = to - this.#contiguousTo;
    for (const arrived of this.#outOfOrder) {
      if (arrived <= to && this.#outOfOrder.delete(arrived)) lost--;
    }
    this.lost += lost;
    this.#contiguousTo = to;
    this.#advance();
  }

  /** Whether all reports of the set have arrived. */
  hasAll(set: ReportSet): boolean {
    if (set.highest > this.#highest) return false;
    for (let seq = this.#contiguousTo + 1; seq <= set.highest; seq++)
      if (isIn(set, seq) && !this.has(seq)) return false;
    return true;
  }

  /**
   * The reports that have arrived; undefined if they have too many gaps. With `lacksHistory`, reports up to `countedTo`
   * are also missing.
   */
  setOf(origin: NodeId, lacksHistory: boolean): ReportSet | undefined {
    const before = lacksHistory && this.#countedTo > 0 ? [1, this.#countedTo] : [];
    const missing = [...before, ...this.missingRanges(MAX_MISSING_RANGES)];
    if (missing.length >= 2 * MAX_MISSING_RANGES) return undefined;
    return { origin, highest: this.#highest, missing };
  }

  /** Whether the reports after `seq` can be requested. */
  canRewindTo(seq: number): boolean {
    return this.#contiguousTo - seq <= MAX_GAP;
  }

  /** Also requests the reports after `seq`: the transferred state does not include their hits. */
  rewindTo(seq: number): void {
    if (seq >= this.#countedTo || !this.canRewindTo(seq)) return;
    for (let arrived = this.#countedTo + 1; arrived <= this.#contiguousTo; arrived++)
      this.#outOfOrder.add(arrived);
    this.#countedTo = seq;
    this.#contiguousTo = seq;
  }

  /** Missing reports as pairs of first sequence number and count. */
  missingRanges(maxPairs: number): number[] {
    const ranges: number[] = [];
    let seq = this.#contiguousTo + 1;
    for (; seq <= this.#highest && ranges.length < maxPairs * 2; seq++) {
      if (this.#outOfOrder.has(seq)) continue;
      const at = ranges.length - 2;
      if (at >= 0 && ranges[at] + ranges[at + 1] === seq) ranges[at + 1]++;
      else ranges.push(seq, 1);
    }
    return ranges;
  }

  #advance(): void {
    while (this.#outOfOrder.delete(this.#contiguousTo + 1)) this.#contiguousTo++;
  }
}
