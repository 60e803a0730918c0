/**
 * What the others are about to do is taken off before they tell.
 *
 * News takes its time. When the next token drips in, every node sees it, and each lets a call through until
 * it hears of the others: the further apart they are, the more all open together and close together. So a
 * node that serves a hit holds back what the others serve meanwhile if they go on as they last did: with a
 * quarter of the hits to itself, three more. What they then tell is met by what was held back for it; what
 * they do not tell fades, and is given back.
 *
 *     served here: 1 ──▶ 1 counted, 3 held back ──▶ told by others: 2 ──▶ 2 of the 3 are counted
 *                                               └─▶ nothing comes ──────▶ they fade in a moment
 *
 * So whoever has just served waits for its turn, as long as the others take theirs. Nobody ever lets through
 * more by it: it only ever holds back, and gives back no more than it has held. At most it holds back what
 * all serve in `EXPECT_MS`.
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerLimit, PeerLimits } from './limits.ts';
import { ENTRY_WIDTH, type Entries } from './messages.ts';

/** Keys it is done for at once: each has one place it can be at. A power of two. */
const PREDICTION_SLOTS = 4096;

/** With more hits than this lately, a key does not make room for another. */
const BUSY_HITS = 2;

/** Over so long it counts how hits are shared out. Longer is steadier, shorter follows a change sooner. */
const RATE_WINDOW_MS: Millis = 1000;

/** What does not come in about so long is not expected any more: some ways there and back. */
const PREDICTION_DECAY_MS: Millis = 200;

/** Less than this is nothing. */
const EPSILON_HITS = 0.01;

interface PredictedKey {
  readonly id: number;
  readonly low: number;
  readonly high: number;
  /** When all of the following was true. */
  updatedAt: Millis;
  /** Hits lately, here and elsewhere. */
  localHits: number;
  remoteHits: number;
  predictedHits: number;
}

export class PeerPrediction {
  readonly #limits: PeerLimits;
  readonly #slots: (PredictedKey | undefined)[] = [];
  /** Those of which something is held back. */
  readonly #active = new Set<PredictedKey>();

  constructor(limits: PeerLimits) {
    this.#limits = limits;
  }

  /** These were served here, and are counted. */
  onLocalHits(entries: Entries, now: Millis): void {
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      this.#onLocalEntry(entries[at], entries[at + 1], entries[at + 2], entries[at + 3], now);
    }
  }

  #onLocalEntry(id: number, low: number, high: number, hits: number, now: Millis): void {
    const limit = this.#limits.byId(id);
    if (!limit?.isAdditive) return;
    const key = this.#keyFor(id, low, high, now);
    if (!key) return;
    this.#decay(key, limit, hits, now);
    key.localHits += hits;
    const meanwhile = ((key.localHits + key.remoteHits) * PREDICTION_DECAY_MS) / RATE_WINDOW_MS;
    const more = Math.min((hits * key.remoteHits) / key.localHits, meanwhile - key.predictedHits);
    if (more > 0) this.#adjust(key, limit, more);
  }

  /** Others served these, which are not counted yet. */
  onRemoteHits(entries: Entries, now: Millis): void {
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      this.#onRemoteEntry(entries[at], entries[at + 1], entries[at + 2], entries[at + 3], now);
    }
  }

  #onRemoteEntry(id: number, low: number, high: number, hits: number, now: Millis): void {
    const limit = this.#limits.byId(id);
    if (!limit?.isAdditive) return;
    const key = this.#keyFor(id, low, high, now);
    if (!key) return;
    this.#decay(key, limit, 0, now);
    key.remoteHits += hits;
    this.#adjust(key, limit, -Math.min(hits, key.predictedHits));
  }

  /** How many hits of a key are held back. */
  predictedFor(id: number, low: number, high: number): number {
    const key = this.#slots[(id ^ low) & (PREDICTION_SLOTS - 1)];
    return key?.id === id && key.low === low && key.high === high ? key.predictedHits : 0;
  }

  /** Gives back what is not expected any more. */
  tick(now: Millis): void {
    for (const key of this.#active) {
      const limit = this.#limits.byId(key.id);
      if (limit) this.#decay(key, limit, 0, now);
      else this.#active.delete(key);
    }
  }

  /** Gives back everything: what is counted now is what was served. */
  releaseAll(): void {
    for (const key of this.#active) this.#release(key);
  }

  /** A key's place, unless it belongs to another that is busy. */
  #keyFor(id: number, low: number, high: number, now: Millis): PredictedKey | undefined {
    const slot = (id ^ low) & (PREDICTION_SLOTS - 1);
    const known = this.#slots[slot];
    if (known?.id === id && known.low === low && known.high === high) return known;
    if (
      known &&
      known.localHits + known.remoteHits > BUSY_HITS &&
      now - known.updatedAt < RATE_WINDOW_MS
    )
      return undefined;
    if (known) this.#release(known);
    const key = { id, low, high, updatedAt: now, localHits: 0, remoteHits: 0, predictedHits: 0 };
    this.#slots[slot] = key;
    return key;
  }

  /** `hits` have just been counted, and were not before. */
  #decay(key: PredictedKey, limit: PeerLimit, hits: number, now: Millis): void {
    const ms = Math.max(0, now - key.updatedAt);
    if (ms > 0) {
      key.updatedAt = now;
      const kept = Math.exp(-ms / RATE_WINDOW_MS);
      key.localHits *= kept;
      key.remoteHits *= kept;
    }
    if (key.predictedHits === 0) return;
    // What is held back in a bucket that would be full by now has flowed back in already.
    key.predictedHits = Math.min(
      key.predictedHits,
      Math.max(0, limit.level(key.low, key.high) - hits),
    );
    const left = key.predictedHits * Math.exp(-ms / PREDICTION_DECAY_MS);
    this.#adjust(key, limit, (left > EPSILON_HITS ? left : 0) - key.predictedHits);
  }

  #adjust(key: PredictedKey, limit: PeerLimit, more: number): void {
    if (more === 0) return;
    key.predictedHits += more;
    limit.adjustLevel(key.low, key.high, more);
    if (key.predictedHits > 0) this.#active.add(key);
    else this.#active.delete(key);
  }

  #release(key: PredictedKey): void {
    const limit = this.#limits.byId(key.id);
    if (limit) this.#decay(key, limit, 0, Infinity);
    this.#active.delete(key);
    this.#slots[(key.id ^ key.low) & (PREDICTION_SLOTS - 1)] = undefined;
  }
}
