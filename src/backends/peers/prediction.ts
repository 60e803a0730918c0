/**
 * Prediction: subtracts the hits that peers are about to report before their reports arrive.
 *
 * Reports take time. When a token is refilled, every node sees it and allows a call until the reports of the other
 * nodes arrive. A longer delay increases the overshoot. So a node that serves a hit holds back the hits that its peers
 * serve meanwhile, assuming constant proportions: with a quarter of the traffic, three more. Reported hits replace
 * predicted ones; predicted hits that are not reported decay and are released.
 *
 *     local hit: 1 ──▶ 1 counted, 3 predicted ──▶ peers report 2 ──▶ 2 of the 3 are counted
 *                                             └─▶ no report ───────▶ the prediction decays
 *
 * So nodes take turns. A prediction never adds capacity: it only holds back, and releases no more than it held. It
 * holds back at most the hits that the fleet serves in `PREDICTION_DECAY_MS`.
 */

import type { Millis } from '../../core/clock.ts';
import type { PeerLimit, PeerLimits } from './limits.ts';
import { ENTRY_WIDTH, type Entries } from './messages.ts';

/** Keys with a prediction: a direct-mapped table, one slot per hash. A power of two. */
const PREDICTION_SLOTS = 4096;

/** A key with more recent hits than this keeps its slot. */
const BUSY_HITS = 2;

/** Time constant of the hit rates: a longer one is steadier, a shorter one follows changes faster. */
const RATE_WINDOW_MS: Millis = 1000;

/** Time constant of the predictions: a few round trips. */
const PREDICTION_DECAY_MS: Millis = 200;

/** Tolerance for levels and predictions, which are sums of fractions. */
const ROUNDING_ERROR = 1e-6;

/** Predictions are multiples of this fraction of a hit: adding and subtracting them leaves no rounding error. */
const PARTS_OF_HIT = 2 ** 20;

/** A smaller prediction is dropped. */
const EPSILON_HITS = 0.01;

interface PredictedKey {
  readonly id: number;
  readonly low: number;
  readonly high: number;
  /** Time of the values below. */
  updatedAt: Millis;
  /** Recent hits here and on peers, decaying by `RATE_WINDOW_MS`. */
  localHits: number;
  remoteHits: number;
  predictedHits: number;
}

export class PeerPrediction {
  readonly #limits: PeerLimits;
  readonly #slots: (PredictedKey | undefined)[] = [];
  readonly #active = new Set<PredictedKey>();

  constructor(limits: PeerLimits) {
    this.#limits = limits;
  }

  /** Must be called after local hits were counted. */
  onLocalHits(entries: Entries, now: Millis): void {
    this.#forEachKey(entries, now, (key, limit, hits) => {
      this.#decay(key, limit, hits, now);
      key.localHits += hits;
      const recentHits = key.localHits + key.remoteHits;
      const maxPredicted = (recentHits * PREDICTION_DECAY_MS) / RATE_WINDOW_MS;
      const expected = (hits * key.remoteHits) / key.localHits;
      const added = Math.min(expected, maxPredicted - key.predictedHits);
      if (added > 0) this.#adjust(key, limit, added);
    });
  }

  /** Must be called before remote hits are counted. */
  onRemoteHits(entries: Entries, now: Millis): void {
    this.#forEachKey(entries, now, (key, limit, hits) => {
      this.#decay(key, limit, 0, now);
      key.remoteHits += hits;
      this.#adjust(key, limit, -Math.min(hits, key.predictedHits));
    });
  }

  #forEachKey(
    entries: Entries,
    now: Millis,
    act: (key: PredictedKey, limit: PeerLimit, hits: number) => void,
  ): void {
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const limit = this.#limits.byId(entries[at]);
      if (!limit?.isAdditive) continue;
      const key = this.#keyFor(entries[at], entries[at + 1], entries[at + 2], now);
      if (key) act(key, limit, entries[at + 3]);
    }
  }

  predictedFor(id: number, low: number, high: number): number {
    const key = this.#slots[(id ^ low) & (PREDICTION_SLOTS - 1)];
    return key?.id === id && key.low === low && key.high === high ? key.predictedHits : 0;
  }

  /** Time until `units` are released; Infinity if fewer are held. */
  msUntilReleased(id: number, low: number, high: number, units: number, now: Millis): Millis {
    const held = this.predictedFor(id, low, high);
    if (held === 0 || held < units - ROUNDING_ERROR) return Infinity;
    const key = this.#slots[(id ^ low) & (PREDICTION_SLOTS - 1)] as PredictedKey;
    const at =
      key.updatedAt + PREDICTION_DECAY_MS * Math.log(held / Math.max(held - units, EPSILON_HITS));
    return Math.max(1, Math.ceil(at - now));
  }

  tick(now: Millis): void {
    for (const key of this.#active) {
      const limit = this.#limits.byId(key.id);
      if (limit) this.#decay(key, limit, 0, now);
      else this.#active.delete(key);
    }
  }

  /** Releases all predictions while `act` runs, so that levels contain only served hits. */
  suspendWhile(now: Millis, act: () => void): void {
    this.tick(now); // a prediction is now at most the level, so it can be released in full
    const held = [...this.#active].map((key) => [key, key.predictedHits] as const);
    for (const [key, hits] of held) this.#adjustBy(key, -hits);
    act();
    for (const [key, hits] of held) this.#adjustBy(key, hits);
  }

  #adjustBy(key: PredictedKey, hits: number): void {
    const limit = this.#limits.byId(key.id);
    if (limit) this.#adjust(key, limit, hits);
  }

  /** Releases all predictions, so that levels contain only served hits. */
  releaseAll(): void {
    for (const key of this.#active) this.#release(key);
  }

  /** The entry of a key; undefined if a busy key has its slot. */
  #keyFor(id: number, low: number, high: number, now: Millis): PredictedKey | undefined {
    const slot = (id ^ low) & (PREDICTION_SLOTS - 1);
    const known = this.#slots[slot];
    if (known?.id === id && known.low === low && known.high === high) return known;
    if (known) {
      const isBusy = known.localHits + known.remoteHits > BUSY_HITS;
      if (isBusy && now - known.updatedAt < RATE_WINDOW_MS) return undefined;
      this.#release(known);
    }
    const key = { id, low, high, updatedAt: now, localHits: 0, remoteHits: 0, predictedHits: 0 };
    this.#slots[slot] = key;
    return key;
  }

  /** Decays a prediction. The level includes `hits` that it did not include when the prediction was made. */
  #decay(key: PredictedKey, limit: PeerLimit, hits: number, now: Millis): void {
    const ms = Math.max(0, now - key.updatedAt);
    if (ms > 0) {
      key.updatedAt = now;
      const factor = Math.exp(-ms / RATE_WINDOW_MS);
      key.localHits *= factor;
      key.remoteHits *= factor;
    }
    if (key.predictedHits === 0) return;
    // The part of the prediction that the bucket has refilled is already released.
    const level = Math.max(0, limit.level(key.low, key.high) - hits);
    key.predictedHits = Math.min(key.predictedHits, level);
    const rest = key.predictedHits * Math.exp(-ms / PREDICTION_DECAY_MS);
    this.#adjust(key, limit, (rest > EPSILON_HITS ? rest : 0) - key.predictedHits);
  }

  #adjust(key: PredictedKey, limit: PeerLimit, amount: number): void {
    const predictedHits = Math.floor((key.predictedHits + amount) * PARTS_OF_HIT) / PARTS_OF_HIT;
    const by = predictedHits - key.predictedHits;
    if (by === 0) return;
    key.predictedHits = predictedHits;
    limit.adjustLevel(key.low, key.high, by);
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
