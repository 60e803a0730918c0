/**
 * How nodes that count alike come to stand alike.
 *
 * Everybody takes off the same hits, so what one node is ahead of another it stays ahead, for as long as
 * the bucket is never full: under overload whoever is ahead sees each token first, and takes them all. A
 * node that came back, or whose clock stood still, would be ahead or behind for ever. So each compares,
 * once in a while, with one other, and goes half of the way to where that one stands. Who is asked is
 * chance, so what one gains by it another loses; and nobody gets beyond the one who is furthest.
 *
 *     asked at t0 ─────────▶ answered at t1 ─────────▶ compared at t2
 *     how it stood here      how it stands there       half of the difference
 *
 * Only what both have counted can be compared. Hits of the two that were not told yet, or were told while
 * the question was under way, are known and left out. What came from others meanwhile, and what flowed
 * back in, is taken to have come evenly: half of it before t1. If it did not, the other may have counted as
 * much as that half more or less than it seems, so a difference that small says nothing, and of a larger
 * one only the rest counts: a burst that comes just then moves nobody.
 */

import { ENTRY_WIDTH, type Entries, type NodeId } from './messages.ts';

/** Keys compared at once. */
export const MAX_COMPARED_KEYS = 16;

/** So much of a difference is made up for at once. */
const CORRECTION_FACTOR = 0.5;

/** Keys that were served somewhere lately: of every report one, in as many places as are compared. */
export class RecentKeys {
  readonly #entries: number[] = [];
  #sampled = 0;

  get isEmpty(): boolean {
    return this.#entries.length === 0;
  }

  sample(entries: Entries): void {
    const keys = entries.length / ENTRY_WIDTH;
    if (keys === 0) return;
    this.#sampled++;
    const from = (this.#sampled % keys) * ENTRY_WIDTH;
    const at = (this.#sampled % MAX_COMPARED_KEYS) * ENTRY_WIDTH;
    const to = Math.min(at, this.#entries.length);
    for (let n = 0; n < ENTRY_WIDTH - 1; n++) this.#entries[to + n] = entries[from + n];
    this.#entries[to + ENTRY_WIDTH - 1] = 1;
  }

  /** Each once, those of one limit together; and none is left. */
  drain(): number[] {
    const rows: number[][] = [];
    for (let at = 0; at < this.#entries.length; at += ENTRY_WIDTH) {
      const row = this.#entries.slice(at, at + ENTRY_WIDTH);
      if (!rows.some((other) => other.every((number, n) => number === row[n]))) rows.push(row);
    }
    this.#entries.length = 0;
    return rows.sort((a, b) => a[0] - b[0]).flat();
  }
}

/** One key that is compared. */
interface ComparedKey {
  readonly limit: number;
  readonly low: number;
  readonly high: number;
  /** How it stood here, without what nobody was told of. */
  readonly levelAtRequest: number;
  /** What the other told meanwhile. */
  receivedHits: number;
  /** What this one told meanwhile: number of the report and hits, in turn. */
  readonly reportedHits: number[];
}

/** A question that is under way to another node. */
export class LevelComparison {
  readonly peerId: NodeId;
  readonly nonce: number;
  readonly #seqAtRequest: number;
  readonly #keys: ComparedKey[] = [];

  /** `seq` is the last report that went out before the question. */
  constructor(other: NodeId, nonce: number, seq: number) {
    this.peerId = other;
    this.nonce = nonce;
    this.#seqAtRequest = seq;
  }

  add(limit: number, low: number, high: number, before: number): void {
    this.#keys.push({
      limit,
      low,
      high,
      levelAtRequest: before,
      receivedHits: 0,
      reportedHits: [],
    });
  }

  get entries(): Entries {
    return this.#keys.flatMap(({ limit, low, high }) => [limit, low, high, 1]);
  }

  /** The other told so much. */
  recordReceived(entries: Entries): void {
    this.#forEachKey(entries, (key, hits) => {
      key.receivedHits += hits;
    });
  }

  /** This one told so much. */
  recordReported(seq: number, entries: Entries): void {
    this.#forEachKey(entries, (key, hits) => key.reportedHits.push(seq, hits));
  }

  #forEachKey(entries: Entries, act: (key: ComparedKey, hits: number) => void): void {
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const key = this.#findKey(entries, at);
      if (key) act(key, entries[at + 3]);
    }
  }

  #findKey(entries: Entries, at: number): ComparedKey | undefined {
    return this.#keys.find(
      ({ limit, low, high }) =>
        limit === entries[at] && low === entries[at + 1] && high === entries[at + 2],
    );
  }

  /**
   * How far this node should move for each key that was answered: more is nearer to empty. `levelOf` says
   * how a key stands here now, without what nobody was told of; `receivedSeq` is the last of this node's
   * reports that the other had counted. False if the two cannot be compared.
   */
  applyCorrections(
    answer: Entries,
    receivedSeq: number,
    levelOf: (limit: number, low: number, high: number) => number,
    move: (limit: number, low: number, high: number, by: number) => void,
  ): boolean {
    if (receivedSeq < this.#seqAtRequest) return false; // it has not counted what was counted here when it was asked
    for (let at = 0; at < answer.length; at += ENTRY_WIDTH) {
      const key = this.#findKey(answer, at);
      if (!key) continue;
      const level = levelOf(key.limit, key.low, key.high);
      if (level <= 0) continue; // as good as new: there is nothing to compare
      let counted = 0;
      let uncounted = 0;
      for (let n = 0; n < key.reportedHits.length; n += 2) {
        if (key.reportedHits[n] <= receivedSeq) counted += key.reportedHits[n + 1];
        else uncounted += key.reportedHits[n + 1];
      }
      const now = level - uncounted;
      const others = now - key.levelAtRequest - key.receivedHits - counted;
      const difference = answer[at + 3] - (now - others / 2);
      const sure = Math.abs(difference) - Math.abs(others) / 2;
      if (sure > 0)
        move(key.limit, key.low, key.high, CORRECTION_FACTOR * sure * Math.sign(difference));
    }
    return true;
  }
}
