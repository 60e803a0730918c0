/**
 * The most called keys of every limit: a random sample of all calls, allowed or denied, counted by key.
 *
 *     router ──▶ is a sample due? ──▶ batch ──▶ counts of the limit's keys ──▶ /top, /keys, `sluice top`, the page
 *
 * A sampled call only joins a batch, which is counted when it is full, once a second, and before counts are read.
 *
 * Up to `SAMPLES_PER_SECOND` every call is counted. Beyond it a count is an estimate; its error is two standard deviations of the
 * sample, and what Space-Saving may have missed. Memory has a bound, as that of denials, and nothing is written to disk.
 */

import { type Clock, type Millis, schedule, systemClock } from '../../core/clock.ts';
import type { KeyHash } from '../../core/hash.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import { shortenKey } from '../key-counts/shorten-key.ts';
import { type SourceName, Sources } from '../key-counts/sources.ts';
import { type Span, SpanCounts, spanStart } from '../key-counts/span-counts.ts';
import { toKeyText } from '../keys/binary-key.ts';
import { GapSampler } from './gap-sampler.ts';

/** The most called keys of a limit, list or command. */
export interface TopCalled extends SourceName {
  /** Calls in the span, of all keys. */
  readonly calls: number;
  readonly keys: readonly CalledKey[];
}

interface CalledKey {
  readonly key: string;
  readonly calls: number;
  /** In 95 of 100 cases the true number differs by at most this; left out if it is exact. */
  readonly error?: number;
}

/** A limit that counts a call by key, or the list or command that decides it. */
export interface CallSource {
  readonly id: string;
  /** Undefined: `id` is the name of a limit. */
  readonly about?: SourceName | undefined;
}

interface SampledCall extends KeyHash {
  readonly sources: readonly CallSource[];
  readonly key: string;
  readonly weight: number;
}

/** Samples that wait to be counted. */
const BATCH_SIZE = 64;

/** A key with samples. A class, so that V8 writes its number in place. */
class SampledKey {
  readonly key: string;
  /** Variance of the estimated count. */
  variance: number;

  constructor(key: string, variance: number) {
    this.key = key;
    this.variance = variance;
  }
}

const sumOf = (a: SampledKey, b: SampledKey): SampledKey =>
  new SampledKey(a.key, a.variance + b.variance);

class CalledKeys {
  lastAt: Millis = Number.NEGATIVE_INFINITY;
  readonly counts = new SpanCounts<SampledKey>(sumOf);

  add({ low, high, key, weight }: SampledCall, now: Millis): void {
    this.lastAt = now;
    const slot = this.counts.add(low, high, now, weight);
    const variance = weight * (weight - 1);
    const known = this.counts.valueAt(slot);
    if (known) known.variance += variance;
    else this.counts.setValueAt(slot, new SampledKey(shortenKey(key), variance));
  }
}

const ADAPT_EVERY_MS: Millis = 1000;

/** Standard deviations that hold 95 of 100 estimates. */
const DEVIATIONS = 2;

export class CallRecorder {
  readonly sampler: GapSampler;
  readonly #clock: Clock;
  readonly #sources: Sources<CalledKeys>;
  readonly #since: Millis;
  readonly #batch: SampledCall[] = [];
  #adaptedAt: Millis;
  #cancelTimer = (): void => {};

  constructor(clock: Clock = systemClock, random: Random = systemRandom) {
    this.#clock = clock;
    this.sampler = new GapSampler(random);
    this.#sources = new Sources(clock, () => new CalledKeys());
    this.#since = this.#adaptedAt = clock.now();
  }

  /** Follows the rate of calls from now on. */
  start(): void {
    const adapt = (): void => {
      const now = this.#clock.now();
      this.#countBatch();
      this.sampler.adapt(Math.max(1, now - this.#adaptedAt));
      this.#adaptedAt = now;
      this.start();
    };
    this.#cancelTimer = schedule(this.#clock, this.#clock.now() + ADAPT_EVERY_MS, adapt, false);
  }

  stop(): void {
    this.#cancelTimer();
  }

  /** Counts a call for which a sample is due. */
  add(sources: readonly CallSource[], key: string, low: number, high: number): void {
    this.#batch.push({ sources, key, low, high, weight: this.sampler.take() });
    if (this.#batch.length === BATCH_SIZE) this.#countBatch();
  }

  #countBatch(): void {
    const now = this.#clock.now();
    for (const call of this.#batch)
      for (const { id, about } of call.sources) this.#sources.keysOf(id, about).add(call, now);
    this.#batch.length = 0;
  }

  /** The limits with most calls in the span, and their most called keys. */
  top(span: Span, maxSources: number, maxKeys: number): TopCalled[] {
    this.#countBatch();
    const now = this.#clock.now();
    return this.#sources.all
      .map(({ about, keys }) => ({ about, keys, calls: keys.counts.total(span, now) }))
      .filter(({ calls }) => calls > 0)
      .sort((a, b) => b.calls - a.calls)
      .slice(0, maxSources)
      .map(({ about, keys, calls }) => ({
        ...about,
        calls,
        keys: keys.counts.top(span, now, maxKeys).map(({ value, count, error }) => {
          const within = Math.ceil(error + DEVIATIONS * Math.sqrt(value.variance));
          return { key: toKeyText(value.key), calls: count, ...(within > 0 && { error: within }) };
        }),
      }));
  }

  /** The time that the counts of a span cover. */
  secondsOf(span: Span): number {
    const now = this.#clock.now();
    const since = Math.max(this.#since, spanStart(span, now));
    return Math.max(1, Math.round((now - since) / 100) / 10);
  }
}
