/**
 * Buffers the reports of peers that return after a silence. Their missed reports arrive late, in any order, and mixed
 * with new ones.
 *
 *     silent ──▶ back ──▶ missing reports arrive ──▶ all are applied, oldest first
 *
 * Late hits count as of the time they were served, so that tokens refilled since then are not owed. But a bucket keeps
 * no history: after a newer hit was applied, an older one counts as of that time. So all reports of these peers are
 * buffered until no report from before their return is missing, and are then applied in order.
 */

import type { Millis } from '../../core/clock.ts';
import type { Entries } from './messages.ts';
import type { Peer } from './peer-table.ts';

/** A peer may have served hits that were not received after this time of silence. */
const SILENCE_THRESHOLD_MS: Millis = 1000;

/** Bounds in time and size. Until the flush, the reports do not count, as if the silence had lasted longer. */
const MAX_BUFFER_MS: Millis = 2000;
const MAX_BUFFERED_NUMBERS = 1_000_000;

interface LateReport {
  readonly from: Peer;
  readonly seq: number;
  readonly servedAt: Millis;
  readonly entries: Entries;
}

export class ReorderBuffer {
  /** By peer: its highest sequence number at its return, if known. */
  readonly #peers = new Map<Peer, number | undefined>();
  #reports: LateReport[] = [];
  #bufferedNumbers = 0;
  /** Time at which the buffered reports are applied at the latest. */
  flushAt: Millis = Infinity;

  has(peer: Peer): boolean {
    return this.#peers.has(peer);
  }

  get isEmpty(): boolean {
    return this.#peers.size === 0;
  }

  /** Must be called when a datagram of the peer arrives, before `lastSeenAt` is updated. */
  detectReturn(peer: Peer, now: Millis): void {
    if (now - peer.lastSeenAt > SILENCE_THRESHOLD_MS) this.#startBuffering(peer, now);
  }

  /** Must be called when the peer is admitted; `apartMs`: how long both nodes ran without knowing each other. */
  addIfApart(peer: Peer, apartMs: Millis, now: Millis): void {
    if (apartMs > SILENCE_THRESHOLD_MS) this.#startBuffering(peer, now);
  }

  #startBuffering(peer: Peer, now: Millis): void {
    if (!this.#peers.has(peer)) this.#peers.set(peer, undefined);
    this.flushAt = Math.min(this.flushAt, now + MAX_BUFFER_MS);
  }

  buffer(report: LateReport): void {
    this.#reports.push(report);
    this.#bufferedNumbers += report.entries.length;
  }

  /** The reports to apply now, oldest first; none until they are complete or `flushAt` is reached. */
  takeDue(now: Millis): readonly LateReport[] {
    if (this.isEmpty || !(this.#isComplete() || now >= this.flushAt)) return [];
    const due = this.#reports.sort((a, b) => a.servedAt - b.servedAt);
    this.clear();
    return due;
  }

  clear(): void {
    this.#peers.clear();
    this.#reports = [];
    this.#bufferedNumbers = 0;
    this.flushAt = Infinity;
  }

  #isComplete(): boolean {
    if (this.#bufferedNumbers >= MAX_BUFFERED_NUMBERS) return true;
    let isComplete = true;
    for (const [peer, seqAtReturn] of this.#peers) {
      const seq = seqAtReturn ?? peer.received.highest;
      this.#peers.set(peer, seq);
      isComplete &&= peer.received.isCompleteTo(seq);
    }
    return isComplete;
  }
}
