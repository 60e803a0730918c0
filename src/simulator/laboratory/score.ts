/**
 * Compares a rule with the best fixed limit of a sink.
 *
 *     score = goodput / best's goodput × best's mean round trip / mean round trip × (1 − refused share)
 *
 * 1 is as good as an operator who knows the server and sets the best limit by hand. Both runs have the same seed.
 * A rule can exceed 1 where the server changes. In a mean over sinks each score counts at most 1, so that one sink cannot make up for another.
 */

import type { Millis } from '../../core/clock.ts';
import { mean } from '../statistics.ts';
import { type BestFixed, bestFixed, referenceRun } from './best-fixed.ts';
import type { CreateRule } from './rule.ts';
import { type Run, runSink } from './run.ts';
import { settlingTimes } from './settling.ts';
import type { Sink } from './sink.ts';

/** A run relative to the best fixed limit. */
export interface Measures {
  readonly score: number;
  /** Goodput, round-trip times and calls in flight as multiples of those of the best fixed limit. */
  readonly goodput: number;
  readonly meanRtt: number;
  readonly p99Rtt: number;
  readonly inFlight: number;
  readonly refused: number;
  readonly sentInSpell: number;
  readonly peakInSpell: number;
  readonly fairness: number;
}

export interface NamedRule {
  readonly name: string;
  readonly create: CreateRule;
}

/** A rule on a sink: the median of each measure over the seeds, and the score of the worst seed. */
export interface Evaluation {
  readonly rule: string;
  readonly sink: Sink;
  readonly seeds: readonly number[];
  readonly best: BestFixed;
  readonly median: Measures;
  readonly worstScore: number;
  /** The median settling time after each change of the sink; `Infinity` if most runs did not settle. */
  readonly settlingMs: readonly Millis[];
  /** The run of the first seed, for charts. */
  readonly firstRun: Run;
}

export function evaluate(rule: NamedRule, sink: Sink, seeds: readonly number[]): Evaluation {
  const best = bestFixed(sink);
  const runs = seeds.map((seed) => runSink(sink, rule.create, seed));
  const measures = runs.map((run, n) => measure(run, referenceRun(sink, seeds[n])));
  const names = Object.keys(measures[0]) as (keyof Measures)[];
  const medians = names.map((name) => [name, median(measures.map((one) => one[name]))]);
  const settling = runs.map(({ course }) => settlingTimes(sink, course));
  return {
    rule: rule.name,
    sink,
    seeds,
    best,
    median: Object.fromEntries(medians),
    worstScore: Math.min(...measures.map(({ score }) => score)),
    settlingMs: settling[0].map((_, n) => median(settling.map((times) => times[n]))),
    firstRun: runs[0],
  };
}

function measure({ figures }: Run, { figures: best }: Run): Measures {
  const { refused, sentInSpell, peakInSpell, fairness } = figures;
  const goodput = figures.goodput / best.goodput;
  const meanRtt = figures.goodput === 0 ? Infinity : figures.meanRttMs / best.meanRttMs;
  return {
    score: (goodput / meanRtt) * (1 - refused),
    goodput,
    meanRtt,
    p99Rtt: figures.goodput === 0 ? Infinity : figures.p99RttMs / best.p99RttMs,
    inFlight: figures.inFlight / best.inFlight,
    refused,
    sentInSpell,
    peakInSpell,
    fairness,
  };
}

/** The mean of median scores over sinks, each at most 1. */
export const meanScore = (evaluations: readonly Evaluation[]): number =>
  mean(evaluations.map(({ median: { score } }) => Math.min(1, score)));

const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];
