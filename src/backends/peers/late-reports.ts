/**
 * Nodes that are back after a silence. What they served meanwhile comes late, in any order, and mixed with
 * what they serve now.
 *
 *     silent ──▶ heard again ──▶ what is missing comes ──▶ all of it counts, the oldest first
 *
 * Late hits count as of when they were served, so that what has flowed back in since is not owed. But a bucket
 * keeps no past: once something newer has counted, older hits count as of that. So all that comes from these
 * nodes is kept until nothing is missing of any of them from before it was back, and counts in its order.
 */

import type { Millis } from '../../core/clock.ts';
import type { Entries } from './messages.ts';
import type { Peer } from './peer-table.ts';

/** One that was silent for so long may have served without being heard. */
const SILENCE_THRESHOLD_MS: Millis = 1000;

/** For so long, and so many numbers, it is kept: until then it is as if the silence had lasted longer. */
const MAX_BUFFER_MS: Millis = 2000;
const MAX_BUFFERED_NUMBERS = 1_000_000;

interface LateReport {
  readonly from: Peer;
  readonly servedAt: Millis;
  readonly entries: Entries;
}

export class ReorderBuffer {
  /** And how far they had come when they were back, once that is known. */
  readonly #peers = new Map<Peer, number | undefined>();
  #reports: LateReport[] = [];
  #bufferedNumbers = 0;
  /** When what is kept counts at the latest. */
  flushAt: Millis = Infinity;

  has(peer: Peer): boolean {
    return this.#peers.has(peer);
  }

  get isEmpty(): boolean {
    return this.#peers.size === 0;
  }

  /** To be called when something of it came, before that is noted. */
  detectReturn(peer: Peer, now: Millis): void {
    if (now - peer.lastSeenAt > SILENCE_THRESHOLD_MS) this.#startBuffering(peer, now);
  }

  /** To be called when it is heard for the first time: neither knew of the other for so long. */
  addIfApart(peer: Peer, apartMs: Millis, now: Millis): void {
    if (apartMs > SILENCE_THRESHOLD_MS) this.#startBuffering(peer, now);
  }

  #startBuffering(peer: Peer, now: Millis): void {
    if (!this.#peers.has(peer)) this.#peers.set(peer, undefined);
    this.flushAt = Math.min(this.flushAt, now + MAX_BUFFER_MS);
  }

  buffer(from: Peer, servedAt: Millis, entries: Entries): void {
    this.#reports.push({ from, servedAt, entries });
    this.#bufferedNumbers += entries.length;
  }

  /** What is due to count, the oldest first, if nothing is missing any more or it takes too long. */
  takeDue(now: Millis): readonly LateReport[] {
    if (this.isEmpty || !(this.#isComplete() || now >= this.flushAt)) return [];
    const late = this.#reports.sort((a, b) => a.servedAt - b.servedAt);
    this.clear();
    return late;
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
    for (const [peer, backAt] of this.#peers) {
      const to = backAt ?? peer.received.highest;
      this.#peers.set(peer, to);
      isComplete &&= peer.received.isCompleteTo(to);
    }
    return isComplete;
  }
}
