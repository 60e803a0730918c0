import type { Millis } from '../../core/clock.ts';
import { ALLOWED } from '../../simulator/scenario/call-log.ts';
import { termsOf } from '../../simulator/scenario/limit-terms.ts';
import type { ScenarioRun } from '../../simulator/scenario/run.ts';
import type { Fault } from '../../simulator/scenario/scenario.ts';
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

/** Steps of a chart, at most. */
const MAX_STEPS = 120;

export const pictureOf = (runs: readonly ScenarioRun[]): Picture => ({
  title: runs.map(({ scenario }) => scenario.name).join(' and '),
  charts: chartsOf(runs),
});

/** The charts of all runs. The same quantity has the same axis in each, so that they can be compared. */
export function chartsOf(runs: readonly ScenarioRun[]): Chart[] {
  const quantities = [callChart, waitChart, flightChart];
  return quantities.flatMap((draw) => {
    const charts = runs.flatMap((run) => draw(run) ?? []);
    const top = Math.max(0, ...charts.map(({ y }) => y.to));
    return charts.map((chart, n) => ({
      ...chart,
      title: runs.length > 1 ? `${chart.title}: ${runs[n].scenario.name}` : chart.title,
      y: { ...chart.y, to: top },
    }));
  });
}

function callChart(run: ScenarioRun): Chart {
  const { decisions, scenario } = run;
  const steps = stepsOf(scenario.durationMs);
  const [calls, allowed] = [new Float64Array(steps.count), new Float64Array(steps.count)];
  const perSecond = 1000 / steps.ms;
  for (let row = 0; row < decisions.length; row++) {
    const n = Math.floor(decisions.at[row] / steps.ms);
    calls[n] += perSecond;
    if (decisions.decision[row] === ALLOWED) allowed[n] += perSecond;
  }
  const top = roundAxisEnd([...calls]);
  return {
    title: 'Calls',
    x: secondsAxis(scenario.durationMs / 1000),
    y: { label: 'calls/s', from: 0, to: top },
    series: [
      { name: 'calls', style: 'shade', points: pointsOf(calls, steps) },
      { name: 'allowed', style: 'bars', points: pointsOf(allowed, steps) },
      ...rateLines(run),
      ...(limitsRate(run) ? limitLines(run, top) : []),
    ],
    ...phasesOf(run),
  };
}

/** A line for the rate of the limit, where one key has it all. */
function rateLines({ scenario, keys }: ScenarioRun): Series[] {
  return scenario.limits.flatMap(({ limit, key }) => {
    const rates = termsOf(limit).map(({ perMs }) => perMs * 1000);
    if (rates.length === 0 || (key === undefined && keys > 1)) return [];
    const rate = Math.min(...rates);
    return [levelLine(`limit ${Number(rate.toPrecision(3))}/s`, rate, scenario.durationMs / 1000)];
  });
}

function waitChart({ decisions, scenario }: ScenarioRun): Chart | undefined {
  if (!scenario.clients.some(({ waitMs }) => waitMs > 0)) return undefined;
  const steps = stepsOf(scenario.durationMs);
  const waits: Millis[][] = Array.from({ length: steps.count }, () => []);
  for (let row = 0; row < decisions.length; row++) {
    if (decisions.decision[row] === ALLOWED)
      waits[Math.floor(decisions.at[row] / steps.ms)].push(decisions.waitedMs[row] / 1000);
  }
  const quantile = (part: number): Float64Array =>
    Float64Array.from(waits, (values) => {
      values.sort((a, b) => a - b);
      return values[Math.floor(part * values.length)] ?? Number.NaN;
    });
  const [p50, p95] = [quantile(0.5), quantile(0.95)];
  return {
    title: 'Waiting time of allowed calls',
    x: secondsAxis(scenario.durationMs / 1000),
    y: { label: 'seconds', from: 0, to: roundAxisEnd([...p95].filter((ms) => ms > 0)) },
    series: [
      { name: 'p95', style: 'shade', points: pointsOf(p95, steps) },
      { name: 'p50', style: 'bars', points: pointsOf(p50, steps) },
    ],
  };
}

function flightChart(run: ScenarioRun): Chart | undefined {
  const { replies, scenario } = run;
  if (!scenario.server) return undefined;
  const steps = stepsOf(scenario.durationMs);
  const inFlight = new Float64Array(steps.count);
  for (let row = 0; row < replies.length; row++) {
    const [from, to] = [replies.startedAt[row], replies.endedAt[row]];
    const last = Math.min(steps.count - 1, Math.floor(to / steps.ms));
    for (let n = Math.floor(from / steps.ms); n <= last; n++) {
      const overlap = Math.min(to, (n + 1) * steps.ms) - Math.max(from, n * steps.ms);
      inFlight[n] += overlap / steps.ms;
    }
  }
  const lines = limitsRate(run) ? [] : limitLines(run, Infinity);
  const highest = lines.flatMap(({ points }) => points.map(([, y]) => y ?? 0));
  return {
    title: 'Calls at the server',
    x: secondsAxis(scenario.durationMs / 1000),
    y: { label: 'mean in flight', from: 0, to: roundAxisEnd([...inFlight, ...highest]) },
    series: [{ name: 'in flight', style: 'bars', points: pointsOf(inFlight, steps) }, ...lines],
    ...phasesOf(run),
  };
}

/** A ramp and a busy limit are calls a second; other learnt limits are calls in flight. */
const limitsRate = ({ scenario }: ScenarioRun): boolean =>
  scenario.limits.some(({ limit }) => 'ramp' in limit || 'busy' in limit);

/** The limit that the first node has learnt or reached; a busy limit is far above all calls most of the time. */
function limitLines({ samples }: ScenarioRun, top: number): Series[] {
  if (!samples.isPresent) return [];
  const points = [...samples.values].map((value, n): Point => {
    return [(n * samples.everyMs) / 1000, value <= top ? value : undefined];
  });
  return [{ name: 'limit of node 1', style: 'line', points }];
}

interface Steps {
  readonly ms: Millis;
  readonly count: number;
}

/** A round step: 1, 2 or 5 times a power of ten. */
function stepsOf(durationMs: Millis): Steps {
  const least = durationMs / MAX_STEPS;
  const power = 10 ** Math.floor(Math.log10(least));
  const ms = ([1, 2, 5].find((digit) => digit * power >= least) ?? 10) * power;
  return { ms, count: Math.ceil(durationMs / ms) };
}

const pointsOf = (values: Float64Array, { ms }: Steps): Point[] =>
  [...values].map((value, n) => [(n * ms) / 1000, Number.isNaN(value) ? undefined : value]);

/** Faults that do not overlap with an earlier one, as bands. */
function phasesOf({ scenario }: ScenarioRun): { readonly phases?: readonly Phase[] } {
  const phases: Phase[] = [];
  const { durationMs } = scenario;
  for (const fault of [...scenario.faults].sort((a, b) => a.atMs - b.atMs)) {
    const from = fault.atMs / 1000;
    const to = Math.min(durationMs, fault.atMs + fault.forMs) / 1000;
    if (from >= (phases.at(-1)?.to ?? 0)) phases.push({ name: faultName(fault), from, to });
  }
  return phases.length > 0 ? { phases } : {};
}

const faultName = (fault: Fault): string =>
  'node' in fault ? `${fault.kind} ${fault.node + 1}` : fault.kind;
