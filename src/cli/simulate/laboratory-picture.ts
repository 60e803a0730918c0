/** Draws rules on one sink over time: the limit beside the best fixed limit, and the goodput. Runs of the first seed. */

import { INTERVAL_MS } from '../../simulator/laboratory/recorder.ts';
import type { Evaluation } from '../../simulator/laboratory/score.ts';
import { clientsOf, durationOf, type Sink } from '../../simulator/laboratory/sink.ts';
import {
  type Chart,
  levelLine,
  type Phase,
  type Point,
  roundAxisEnd,
  type Series,
  secondsAxis,
} from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';

/** A limit above this multiple of the best fixed limit is cut off, so that the others stay readable. */
const MAX_SHOWN = 6;

export function laboratoryPicture(evaluations: readonly Evaluation[]): Picture {
  const [{ sink, best }] = evaluations;
  const bestLimit = best.limit * clientsOf(sink);
  const fleet = sink.clients === undefined ? '' : `, sum of ${sink.clients} clients`;
  return {
    title: `Adaptive concurrency on ${sink.name}: ${sink.description}`,
    charts: [
      timeChart(
        `limit${fleet}`,
        'calls in flight',
        sink,
        evaluations.map(({ rule, firstRun }) => line(rule, [...firstRun.course.limit])),
        levelLine('best fixed', bestLimit, durationOf(sink) / 1000),
        MAX_SHOWN * bestLimit,
      ),
      timeChart(
        'goodput',
        'calls in the last second',
        sink,
        evaluations.map(({ rule, firstRun }) => line(rule, lastSecond(firstRun.course.completed))),
        levelLine('best fixed, mean', best.figures.goodput, durationOf(sink) / 1000),
      ),
    ],
  };
}

function timeChart(
  title: string,
  label: string,
  sink: Sink,
  lines: readonly Series[],
  best: Series,
  maxShown = Infinity,
): Chart {
  const values = [...lines, best].flatMap(({ points }) => points.map(([, y]) => y ?? 0));
  return {
    title,
    x: secondsAxis(durationOf(sink) / 1000),
    y: { label, from: 0, to: roundAxisEnd(values.map((value) => Math.min(value, maxShown))) },
    series: [...lines, best],
    phases: phasesOf(sink),
  };
}

const line = (name: string, values: readonly number[]): Series => ({
  name,
  style: 'line',
  points: values.map((value, n): Point => [(n * INTERVAL_MS) / 1000, value]),
});

/** Completed calls in the second that ends with each interval. */
function lastSecond(completed: Float64Array): number[] {
  const each = 1000 / INTERVAL_MS;
  return Array.from(completed, (_, n) =>
    completed.subarray(Math.max(0, n + 1 - each), n + 1).reduce((total, count) => total + count, 0),
  );
}

function phasesOf({ changes = [], refusingSpell, ...sink }: Sink): Phase[] {
  const ends = [...changes.slice(1).map(({ atMs }) => atMs), durationOf(sink)];
  const changed = changes.map(({ atMs, becomes }, n) => ({
    name: becomes.description,
    from: atMs / 1000,
    to: ends[n] / 1000,
  }));
  if (refusingSpell === undefined) return changed;
  const { fromMs, toMs } = refusingSpell;
  return [...changed, { name: 'no success', from: fromMs / 1000, to: toMs / 1000 }];
}
