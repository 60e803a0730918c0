/**
 * The best fixed limit of a sink, found by a sweep: what an operator would set who knows the server.
 *
 * Best is the highest goodput² × (1 − refused share) / mean round trip. That is Kleinrock's power (throughput / delay) with
 * the goodput weighted twice. Power alone is highest where much of a server is idle: for M/M/1 with random arrivals at
 * half of its capacity. Weighted twice, a limit that starves the server is not best.
 */

import { fixedRule } from './rule.ts';
import { type Run, runSink } from './run.ts';
import type { Sink } from './sink.ts';

export interface BestFixed extends Run {
  /** Calls in flight allowed for each client. */
  readonly limit: number;
}

/** The seed of all sweeps: not one that rules are measured with. */
const SWEEP_SEED = 1_000_001;

/** The coarse grid of limits is geometric. */
const GRID_RATIO = 1.4;
const MAX_LIMIT = 1000;

/** The sweep ends after so many limits in a row without a better one. */
const MAX_WORSE = 3;

/** The refinement tries two limits on both sides of the best one, in steps down to this part of it. */
const MIN_STEP = 0.02;

/** Remembered for the life of the process: a sweep takes longer than the runs it is compared with. */
const found = new WeakMap<Sink, BestFixed>();
const references = new WeakMap<Sink, Map<number, Run>>();

export function bestFixed(sink: Sink): BestFixed {
  const known = found.get(sink);
  if (known) return known;
  const best = sweep(sink);
  found.set(sink, best);
  return best;
}

/** A run with the best fixed limit on the seed of another run: both get the same arrivals and service times. */
export function referenceRun(sink: Sink, seed: number): Run {
  const runs = references.get(sink) ?? new Map<number, Run>();
  references.set(sink, runs);
  const { limit } = bestFixed(sink);
  const run = runs.get(seed) ?? runSink(sink, () => fixedRule(limit), seed);
  runs.set(seed, run);
  return run;
}

function sweep(sink: Sink): BestFixed {
  const tried = new Map<number, BestFixed>();
  let best: BestFixed | undefined;
  /** True if it is better than all before. */
  const tryLimit = (limit: number): boolean => {
    if (tried.has(limit)) return false;
    const candidate = { limit, ...runSink(sink, () => fixedRule(limit), SWEEP_SEED) };
    tried.set(limit, candidate);
    if (best !== undefined && powerOf(candidate) <= powerOf(best)) return false;
    best = candidate;
    return true;
  };

  let worse = 0;
  for (let limit = 1; limit <= MAX_LIMIT && worse < MAX_WORSE; limit = nextLimit(limit)) {
    worse = tryLimit(limit) ? 0 : worse + 1;
  }
  if (best === undefined) throw new Error('expected a limit of at least 1');
  let step = Math.ceil((best.limit * (GRID_RATIO - 1)) / 3);
  for (; step >= Math.max(1, MIN_STEP * best.limit); step = Math.floor(step / 2)) {
    const { limit } = best;
    for (const near of [limit - 2 * step, limit - step, limit + step, limit + 2 * step]) {
      if (near >= 1 && near <= MAX_LIMIT) tryLimit(near);
    }
  }
  return best;
}

const nextLimit = (limit: number): number => Math.max(limit + 1, Math.round(limit * GRID_RATIO));

/** 0 without a successful call. */
function powerOf({ figures: { goodput, refused, meanRttMs } }: Run): number {
  return goodput === 0 ? 0 : (goodput ** 2 * (1 - refused)) / meanRttMs;
}
