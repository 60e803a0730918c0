import type { Millis } from '../../core/clock.ts';
import { overshootOf } from '../overshoot.ts';
import { jainIndex } from '../statistics.ts';
import type { FleetOptions } from './fleet.ts';

/** A call that the fleet allowed. */
export interface AdmittedCall {
  readonly at: Millis;
  readonly client: number;
}

/** A change of conditions, by time since the first call. */
export interface Disturbance {
  readonly what: string;
  readonly atMs: Millis;
  /** Load from then on, as a multiple of the rate. */
  readonly load: number;
}

export interface PeersRun {
  readonly startMs: Millis;
  readonly intervalMs: Millis;
  readonly admitted: readonly AdmittedCall[];
  readonly calls: number;
  /** Calls that the oracle, one central bucket, allows. */
  readonly oracleAdmitted: number;
  /** Wrong allows and wrong denies: calls allowed by the fleet and denied by the oracle, and the reverse. */
  readonly falseAllows: number;
  readonly falseDenials: number;
  readonly servedBy: readonly number[];
  /** Control traffic of all nodes. */
  readonly sent: number;
  readonly sentBytes: number;
  readonly ages: AgeHistogram;
  readonly bound: number;
  readonly disturbances: readonly Disturbance[];
}

export interface PeersFigures {
  readonly calls: number;
  readonly admitted: number;
  /** By window length in ms: the fullest window relative to burst + rate × window; one bucket has at most 1. */
  readonly worst: Readonly<Record<number, number>>;
  /** By window length in ms: overshoot relative to rate × window; one bucket has 0. */
  readonly overshootRatio: Readonly<Record<number, number>>;
  /** Overshoot: the most calls above burst + rate × span, over all spans. */
  readonly overshootCalls: number;
  /** Upper bound of `overshootCalls`. */
  readonly bound: number;
  /** Admitted calls relative to one central bucket. */
  readonly utilisation: number;
  /** Admitted rate in the second half of the run, relative to the limit. */
  readonly mean: number;
  /** Wrong allows and wrong denies, relative to all calls. */
  readonly falseAllows: number;
  readonly falseDenials: number;
  /** Jain's fairness index of admitted calls. */
  readonly fairNodes: number;
  readonly fairClients: number;
  /** Time from each disturbance until the rate is kept; Infinity if not before the next one. */
  readonly convergence: readonly (Disturbance & { readonly afterMs: Millis })[];
  /** Age of view: time from a call until another node has counted it. */
  readonly age: { readonly meanMs: Millis; readonly p99Ms: Millis; readonly maxMs: Millis };
  /** Control traffic per node; a broadcast counts once. */
  readonly bytesPerSecond: number;
  readonly datagramsPerSecond: number;
  /** Admitted calls of all clients per time slice. */
  readonly timeline: { readonly everyMs: Millis; readonly admitted: readonly number[] };
}

type FleetLimit = Pick<FleetOptions, 'nodes' | 'rate' | 'burst' | 'spanMs' | 'clients'>;

const WINDOWS_MS: readonly Millis[] = [1000, 10_000, 60_000];

const SLICE_MS: Millis = 100;

export function figuresOf(limit: FleetLimit, run: PeersRun): PeersFigures {
  const { nodes, rate, burst, spanMs, clients } = limit;
  const byClient = Array.from({ length: clients }, (): Millis[] => []);
  for (const { at, client } of run.admitted) byClient[client].push(at);
  const maxOverClients = (read: (times: readonly Millis[]) => number): number =>
    byClient.reduce((max, times) => Math.max(max, read(times)), 0);
  const windows = [...new Set([run.intervalMs, ...WINDOWS_MS])]
    .filter((windowMs) => windowMs <= spanMs)
    .map((windowMs) => {
      const refill = (rate * windowMs) / 1000;
      return { windowMs, refill, peak: maxOverClients((times) => peakWithin(times, windowMs)) };
    });
  const byWindow = (ratio: (window: (typeof windows)[number]) => number) =>
    Object.fromEntries(windows.map((window) => [window.windowMs, ratio(window)]));
  const inSecondHalf = run.admitted.filter(({ at }) => at >= run.startMs + spanMs / 2).length;
  const timeline = slicesOf(run, spanMs);
  return {
    calls: run.calls,
    admitted: run.admitted.length,
    worst: byWindow(({ refill, peak }) => peak / (burst + refill)),
    overshootRatio: byWindow(({ refill, peak }) => Math.max(0, peak - burst - refill) / refill),
    overshootCalls: maxOverClients((times) => overshootOf(times, rate, burst)),
    bound: run.bound,
    utilisation: run.oracleAdmitted > 0 ? run.admitted.length / run.oracleAdmitted : 1,
    mean: inSecondHalf / (((rate * spanMs) / 2000) * clients),
    falseAllows: run.falseAllows / Math.max(1, run.calls),
    falseDenials: run.falseDenials / Math.max(1, run.calls),
    fairNodes: jainIndex(run.servedBy),
    fairClients: jainIndex(byClient.map(({ length }) => length)),
    convergence: convergenceOf(limit, run.disturbances, timeline),
    age: run.ages.figures(),
    bytesPerSecond: (run.sentBytes * 1000) / nodes / spanMs,
    datagramsPerSecond: (run.sent * 1000) / nodes / spanMs,
    timeline: { everyMs: SLICE_MS, admitted: timeline },
  };
}

/** The most calls in any window of that length. */
function peakWithin(times: readonly Millis[], windowMs: Millis): number {
  let peak = 0;
  let from = 0;
  for (let to = 0; to < times.length; to++) {
    while (times[to] - times[from] >= windowMs) from++;
    peak = Math.max(peak, to - from + 1);
  }
  return peak;
}

function slicesOf({ admitted, startMs }: PeersRun, spanMs: Millis): number[] {
  const slices = Array<number>(Math.ceil(spanMs / SLICE_MS)).fill(0);
  for (const { at } of admitted) slices[Math.floor((at - startMs) / SLICE_MS)]++;
  return slices;
}

/** The rate is kept if this many windows in a row are within the tolerance; a window has at least a second. */
const RATE_TOLERANCE = 0.05;
const STABLE_WINDOWS = 3;
const WINDOW_CALLS = 100;

/** Below this load the limit is not reached, so there is no rate to keep. */
const MIN_LOAD = 1.1;

function convergenceOf(
  { rate, clients, spanMs }: FleetLimit,
  disturbances: readonly Disturbance[],
  slices: readonly number[],
): PeersFigures['convergence'] {
  const perSlice = (rate * clients * SLICE_MS) / 1000;
  const window = Math.max(1000 / SLICE_MS, Math.ceil(WINDOW_CALLS / perSlice));
  const sums = [0];
  for (const admitted of slices) sums.push(sums[sums.length - 1] + admitted);
  const isKept = (from: number): boolean =>
    Math.abs(sums[from + window] - sums[from] - window * perSlice) <=
    RATE_TOLERANCE * window * perSlice;
  return disturbances.flatMap((disturbance, n) => {
    if (disturbance.load < MIN_LOAD) return [];
    const begin = Math.ceil(disturbance.atMs / SLICE_MS);
    const end = Math.floor((disturbances[n + 1]?.atMs ?? spanMs) / SLICE_MS) - window;
    const enough = Math.min(STABLE_WINDOWS * window, Math.floor((end - begin) / 2));
    let kept = 0;
    for (let at = begin; at <= end; at++) {
      kept = isKept(at) ? kept + 1 : 0;
      if (kept > enough) return { ...disturbance, afterMs: (at - kept + 1 - begin) * SLICE_MS };
    }
    return { ...disturbance, afterMs: Infinity };
  });
}

/** Histogram of view ages in steps of 1 %: a run has millions of ages. */
export class AgeHistogram {
  readonly #counts: number[] = [];
  #count = 0;
  #sum = 0;
  #max = 0;

  add(ageMs: Millis): void {
    const step = ageMs > MIN_AGE_MS ? Math.ceil(Math.log(ageMs / MIN_AGE_MS) / LOG_STEP) : 0;
    this.#counts[step] = (this.#counts[step] ?? 0) + 1;
    this.#count++;
    this.#sum += ageMs;
    this.#max = Math.max(this.#max, ageMs);
  }

  figures(): PeersFigures['age'] {
    if (this.#count === 0) return { meanMs: 0, p99Ms: 0, maxMs: 0 };
    let rest = this.#count * 0.99;
    let step = 0;
    while (step < this.#counts.length && rest > (this.#counts[step] ?? 0)) {
      rest -= this.#counts[step++] ?? 0;
    }
    const p99Ms = Math.min(this.#max, MIN_AGE_MS * Math.exp(step * LOG_STEP));
    return { meanMs: this.#sum / this.#count, p99Ms, maxMs: this.#max };
  }
}

const MIN_AGE_MS: Millis = 0.01;
const LOG_STEP = Math.log(1.01);
