/**
 * Corrects differences between the bucket levels of two nodes.
 *
 * All nodes subtract equal hits, so a difference remains as long as the bucket is never full. Under overload the node
 * that is ahead sees each token first and takes it. A node that returned, or whose clock stopped, would stay ahead or
 * behind. So each node periodically compares with a random peer and moves by half of the difference. The choice is
 * random, so gains and losses even out, and no level passes the most extreme one.
 *
 *     request at t0 ───────▶ reply at t1 ───────▶ comparison at t2
 *     level here             level of the peer    half of the difference
 *
 * Only hits that both nodes have counted can be compared. Hits of the two nodes that are pending, or were reported
 * between t0 and t2, are known and left out. Hits of third nodes, and refill, are assumed to be evenly spread: half of
 * them before t1. If they are not, the peer's level is uncertain by that half. So a smaller difference is ignored, and
 * only the excess of a larger one counts: a burst between t0 and t2 changes nothing.
 */

import { ENTRY_WIDTH, type Entries, type NodeId } from './messages.ts';

export const MAX_COMPARED_KEYS = 16;

/** Fraction of a difference that one comparison corrects. */
const CORRECTION_FACTOR = 0.5;

/** Samples recently served keys: one key of every report, in a ring of `MAX_COMPARED_KEYS`. */
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

  /** Removes and returns all samples without duplicates, grouped by limit. */
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

interface ComparedKey {
  readonly limit: number;
  readonly low: number;
  readonly high: number;
  /** Level here at the request, excluding pending hits. */
  readonly levelAtRequest: number;
  /** Hits that the peer has reported since the request. */
  receivedHits: number;
  /** Hits that this node has reported since the request: sequence number and hits, alternating. */
  readonly reportedHits: number[];
}

export class LevelComparison {
  readonly peerId: NodeId;
  readonly nonce: number;
  readonly #seqAtRequest: number;
  readonly #keys: ComparedKey[] = [];

  /** `seq` is this node's last report before the request. */
  constructor(peerId: NodeId, nonce: number, seq: number) {
    this.peerId = peerId;
    this.nonce = nonce;
    this.#seqAtRequest = seq;
  }

  add(limit: number, low: number, high: number, levelAtRequest: number): void {
    this.#keys.push({ limit, low, high, levelAtRequest, receivedHits: 0, reportedHits: [] });
  }

  get entries(): Entries {
    return this.#keys.flatMap(({ limit, low, high }) => [limit, low, high, 1]);
  }

  /** Must be called for every report of the peer. */
  recordReceived(entries: Entries): void {
    this.#forEachKey(entries, (key, hits) => {
      key.receivedHits += hits;
    });
  }

  /** Must be called for every report of this node. */
  recordReported(seq: number, entries: Entries): void {
    this.#forEachKey(entries, (key, hits) => key.reportedHits.push(seq, hits));
  }

  #forEachKey(entries: Entries, act: (key: ComparedKey, amount: number) => void): void {
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const key = this.#keys.find(
        ({ limit, low, high }) =>
          limit === entries[at] && low === entries[at + 1] && high === entries[at + 2],
      );
      if (key) act(key, entries[at + 3]);
    }
  }

  /**
   * Calls `adjust` with the correction for each key of the reply; a positive correction spends units. `levelOf` is the
   * current level here, excluding pending hits. `receivedSeq` is this node's last report that the peer had counted.
   * Returns false if the levels cannot be compared.
   */
  applyCorrections(
    reply: Entries,
    receivedSeq: number,
    levelOf: (limit: number, low: number, high: number) => number,
    adjust: (limit: number, low: number, high: number, by: number) => void,
  ): boolean {
    if (receivedSeq < this.#seqAtRequest) return false; // the peer lacks hits that `levelAtRequest` includes
    this.#forEachKey(reply, (key, peerLevel) => {
      const { limit, low, high, reportedHits } = key;
      const level = levelOf(limit, low, high);
      if (level <= 0) return; // a full bucket has nothing to compare
      let counted = 0;
      let uncounted = 0;
      for (let n = 0; n < reportedHits.length; n += 2) {
        if (reportedHits[n] <= receivedSeq) counted += reportedHits[n + 1];
        else uncounted += reportedHits[n + 1];
      }
      const comparable = level - uncounted;
      const thirdParty = comparable - key.levelAtRequest - key.receivedHits - counted;
      const difference = peerLevel - (comparable - thirdParty / 2);
      const certain = Math.abs(difference) - Math.abs(thirdParty) / 2;
      if (certain > 0)
        adjust(limit, low, high, CORRECTION_FACTOR * certain * Math.sign(difference));
    });
    return true;
  }
}
