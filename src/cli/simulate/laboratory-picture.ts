/** Draws the runs of the first seed. */

import { bestFixed, referenceRun } from '../../simulator/laboratory/best-fixed.ts';
import { type Course, INTERVAL_MS } from '../../simulator/laboratory/recorder.ts';
import type { Evaluation } from '../../simulator/laboratory/score.ts';
import { clientsOf, durationOf, type Sink } from '../../simulator/laboratory/sink.ts';
import {
  type Chart,
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
  const [{ sink, best, seeds }] = evaluations;
  const bestLimit = best.limit * clientsOf(sink);
  const fleet = sink.clients === undefined ? '' : `, sum of ${sink.clients} clients`;
  const runs = [
    ...evaluations.map(({ rule, firstRun: { course } }) => ({ name: rule, course })),
    { name: BEST, course: referenceRun(sink, seeds[0]).course },
  ];
  const counts = (of: (course: Course) => Float64Array): Series[] =>
    runs.map(({ name, course }) => line(name, lastSecond(of(course))));
  const limits = evaluations.map(({ rule, firstRun }) => line(rule, [...firstRun.course.limit]));
  const perSecond = 'calls in the last second';
  const charts = [
    timeChart(
      `limit${fleet}`,
      'calls in flight',
      sink,
      [...limits, bestLimits(sink, bestLimit)],
      MAX_SHOWN * bestLimit,
    ),
    timeChart(
      'goodput',
      perSecond,
      sink,
      counts(({ completed }) => completed),
    ),
  ];
  const refusals = timeChart(
    'refused or timed out',
    perSecond,
    sink,
    counts(({ dropped }) => dropped),
  );
  return {
    title: `Adaptive concurrency on ${sink.name}: ${sink.description}`,
    charts: sink.kind === 'refusing' ? [...charts, refusals] : charts,
  };
}

const BEST = 'best fixed';

/** The best fixed limit of the whole run, and from each change of the server on that of the new server. */
function bestLimits(sink: Sink, bestLimit: number): Series {
  const changed = (sink.changes ?? []).map(
    ({ atMs, becomes }): Point => [atMs / 1000, bestFixed(becomes).limit * clientsOf(sink)],
  );
  const end: Point = [durationOf(sink) / 1000, undefined];
  return { name: BEST, style: 'line', points: [[0, bestLimit], ...changed, end] };
}

function timeChart(
  title: string,
  label: string,
  sink: Sink,
  series: readonly Series[],
  maxShown = Infinity,
): Chart {
  const values = series.flatMap(({ points }) => points.map(([, y]) => y ?? 0));
  return {
    title,
    x: secondsAxis(durationOf(sink) / 1000),
    y: { label, from: 0, to: roundAxisEnd(values.map((value) => Math.min(value, maxShown))) },
    series,
    phases: phasesOf(sink),
  };
}

const line = (name: string, values: readonly number[]): Series => ({
  name,
  style: 'line',
  points: values.map((value, n): Point => [(n * INTERVAL_MS) / 1000, value]),
});

/** Calls in the second that ends with each interval. */
function lastSecond(calls: Float64Array): number[] {
  const each = 1000 / INTERVAL_MS;
  return Array.from(calls, (_, n) =>
    calls.subarray(Math.max(0, n + 1 - each), n + 1).reduce((total, count) => total + count, 0),
  );
}

function phasesOf({ changes = [], spell, ...sink }: Sink): Phase[] {
  const ends = [...changes.slice(1).map(({ atMs }) => atMs), durationOf(sink)];
  const changed = changes.map(({ atMs, becomes }, n) => ({
    name: becomes.description,
    from: atMs / 1000,
    to: ends[n] / 1000,
  }));
  if (spell === undefined) return changed;
  const { fromMs, toMs } = spell;
  return [...changed, { name: 'no success', from: fromMs / 1000, to: toMs / 1000 }];
}
