/**
 * Finds a token bucket that would have throttled at most a share of the clients.
 *
 * A client is never denied if the burst is at least the highest level that its calls reach in a bucket which leaks at
 * the rate:
 *
 *     level ← max(0, level − rate × time since its last call) + cost        burst needed = highest level
 *
 * One pass over the log computes the needed burst of every client at every candidate rate. At each rate, the burst is
 * the lowest that suffices for all but the given share of the clients. The suggestion is the pair of rate and burst that
 * lets a single client make the fewest calls within a minute: burst + rate × 60 s; if equal, the one with fewer throttled clients.
 */

import type { Millis } from '../../core/clock.ts';
import { parseRate } from '../../core/duration.ts';

/** Rates that an operator would write, lowest first. */
const RATES = [
  ...['1/h', '2/h', '5/h', '10/h', '20/h', '30/h'],
  ...['1/m', '2/m', '3/m', '5/m', '10/m', '20/m', '30/m'],
  ...['1/s', '2/s', '3/s', '5/s', '10/s', '20/s', '30/s', '50/s', '100/s', '200/s', '500/s'],
  ...['1000/s', '2000/s', '5000/s', '10000/s'],
];

const PER_MS = Float64Array.from(RATES, (rate) => {
  const { count, periodMs } = parseRate(rate) ?? { count: 0, periodMs: 1 };
  return count / periodMs;
});

/** The time for which the calls of one client are kept lowest. */
const WINDOW_MS: Millis = 60_000;

/** Keys in one block of memory. */
const BLOCK_KEYS = 4096;

/** Rounding error of sums of fractions. */
const EPSILON = 1e-6;

interface Candidate {
  readonly rate: string;
  readonly burst: number;
  /** Calls that one client can make within a minute. */
  readonly perMinute: number;
  /** Clients that need a higher burst. */
  readonly throttled: number;
}

export interface Suggestion extends Candidate {
  /** One pair per rate, lowest rate first; rates that need no lower burst than a lower rate are left out. */
  readonly candidates: readonly Candidate[];
}

/** The needed bursts of all clients. */
export class BurstNeeds {
  /** By block: for each key its last call, then level and highest level at each rate. */
  readonly #blocks: Float64Array[] = [];
  #keys = 0;
  readonly #width = 1 + 2 * RATES.length;

  add(id: number, at: Millis, cost: number): void {
    const block = this.#blockOf(id);
    const base = (id % BLOCK_KEYS) * this.#width;
    const isKnown = block[base] > 0;
    const elapsed = isKnown ? at + 1 - block[base] : 0;
    block[base] = at + 1; // 0: no call yet
    for (let n = 0; n < PER_MS.length; n++) {
      const i = base + 1 + 2 * n;
      const level = Math.max(0, block[i] - PER_MS[n] * elapsed) + cost;
      block[i] = level;
      if (level > block[i + 1]) block[i + 1] = level;
    }
    if (id >= this.#keys) this.#keys = id + 1;
  }

  #blockOf(id: number): Float64Array {
    const n = Math.floor(id / BLOCK_KEYS);
    while (this.#blocks.length <= n) this.#blocks.push(new Float64Array(BLOCK_KEYS * this.#width));
    return this.#blocks[n];
  }

  /** Undefined without calls. `share` is from 0 to 1. */
  suggest(share: number): Suggestion | undefined {
    const candidates: Candidate[] = [];
    for (const [n, rate] of RATES.entries()) {
      const needs = this.#needsAt(n);
      if (needs.length === 0) return undefined;
      const throttledMost = Math.floor(share * needs.length + EPSILON);
      const needed = needs[Math.max(0, needs.length - 1 - throttledMost)];
      const burst = throttledMost >= needs.length ? 1 : Math.max(1, Math.ceil(needed - EPSILON));
      if (burst >= (candidates.at(-1)?.burst ?? Infinity)) continue;
      const perMinute = burst + PER_MS[n] * WINDOW_MS;
      const throttled = needs.reduce((sum, need) => sum + (need > burst + EPSILON ? 1 : 0), 0);
      candidates.push({ rate, burst, perMinute, throttled });
    }
    const isBetter = (a: Candidate, b: Candidate): boolean =>
      a.perMinute < b.perMinute || (a.perMinute === b.perMinute && a.throttled < b.throttled);
    const best = candidates.reduce((a, b) => (isBetter(b, a) ? b : a));
    return { ...best, candidates };
  }

  /** The needed bursts at one rate, lowest first. */
  #needsAt(rate: number): Float64Array {
    const needs = new Float64Array(this.#keys);
    let count = 0;
    for (let id = 0; id < this.#keys; id++) {
      const block = this.#blockOf(id);
      const base = (id % BLOCK_KEYS) * this.#width;
      if (block[base] > 0) needs[count++] = block[base + 2 + 2 * rate];
    }
    return needs.subarray(0, count).sort();
  }
}
