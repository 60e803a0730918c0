/**
 * What a run of a fleet comes to, in the words of docs/accuracy.md.
 */

import type { Millis } from '../../core/clock.ts';
import { jainIndex } from '../statistics.ts';

/** A call that was let through. */
export interface AdmittedCall {
  readonly at: Millis;
  readonly client: number;
}

/** Something changes, so long after the first call. */
export interface Disturbance {
  readonly what: string;
  readonly atMs: Millis;
  /** What is asked for from then on, in times the rate. */
  readonly load: number;
}

export interface FleetRun {
  readonly startMs: Millis;
  readonly intervalMs: Millis;
  readonly admitted: readonly AdmittedCall[];
  readonly calls: number;
  /** What one central bucket lets through. */
  readonly oracleAdmitted: number;
  readonly falseAllows: number;
  readonly falseDenials: number;
  readonly servedBy: readonly number[];
  /** Datagrams and bytes, of all nodes. */
  readonly sent: number;
  readonly sentBytes: number;
  readonly ages: AgeHistogram;
  readonly bound: number;
  readonly disturbances: readonly Disturbance[];
}

export interface FleetFigures {
  readonly calls: number;
  readonly admitted: number;
  /** Worst window of so many milliseconds, as a part of burst and rate: 1 is what one bucket allows. */
  readonly worst: Readonly<Record<number, number>>;
  /** The same as what was too much, as a part of the rate alone: 0 is what one bucket allows. */
  readonly overshootRatio: Readonly<Record<number, number>>;
  /** The most that was let through in any span beyond burst and rate over that span, in calls. */
  readonly overshootCalls: number;
  /** And what that can never exceed. */
  readonly bound: number;
  /** Of what one bucket would have let through, how much was. */
  readonly utilisation: number;
  /** Calls a second in the second half of the run, as a part of the rate. */
  readonly mean: number;
  /** Calls decided otherwise than by one bucket, as parts of all calls. */
  readonly falseAllows: number;
  readonly falseDenials: number;
  readonly fairNodes: number;
  readonly fairClients: number;
  /** From every turn on, how long until the rate was kept; Infinity: it was not, before the next turn. */
  readonly convergence: readonly (Disturbance & { readonly afterMs: Millis })[];
  /** From a call being served until another node had counted it. */
  readonly age: { readonly meanMs: Millis; readonly p99Ms: Millis; readonly maxMs: Millis };
  /** A node sends so much; what goes to everybody counts once. */
  readonly bytesPerSecond: number;
  readonly datagramsPerSecond: number;
  /** Calls let through in each slice of time, of all clients together. */
  readonly timeline: { readonly everyMs: Millis; readonly admitted: readonly number[] };
}

interface FleetLimit {
  readonly nodes: number;
  readonly rate: number;
  readonly burst: number;
  readonly spanMs: Millis;
  readonly clients: number;
}

const WINDOWS_MS: readonly Millis[] = [1000, 10_000, 60_000];

const SLICE_MS: Millis = 100;

export function figuresOf(rule: FleetLimit, run: FleetRun): FleetFigures {
  const { nodes, rate, burst, spanMs, clients } = rule;
  const byClient = Array.from({ length: clients }, (): Millis[] => []);
  for (const { at, client } of run.admitted) byClient[client].push(at);
  const highest = (read: (times: readonly Millis[]) => number): number =>
    byClient.reduce((most, times) => Math.max(most, read(times)), 0);
  const windows = [...new Set([run.intervalMs, ...WINDOWS_MS])]
    .filter((own) => own <= spanMs)
    .map((windowMs) => {
      const paid = (rate * windowMs) / 1000;
      return { windowMs, paid, most: highest((times) => peakWithin(times, windowMs)) };
    });
  const half = run.admitted.filter(({ at }) => at >= run.startMs + spanMs / 2).length;
  const timeline = slicesOf(run, spanMs);
  return {
    calls: run.calls,
    admitted: run.admitted.length,
    worst: Object.fromEntries(
      windows.map(({ windowMs, paid, most }) => [windowMs, most / (burst + paid)]),
    ),
    overshootRatio: Object.fromEntries(
      windows.map(({ windowMs, paid, most }) => [
        windowMs,
        Math.max(0, most - burst - paid) / paid,
      ]),
    ),
    overshootCalls: highest((times) => overshootOf(times, rate, burst)),
    bound: run.bound,
    utilisation: run.oracleAdmitted > 0 ? run.admitted.length / run.oracleAdmitted : 1,
    mean: half / (((rate * spanMs) / 2000) * clients),
    falseAllows: run.falseAllows / Math.max(1, run.calls),
    falseDenials: run.falseDenials / Math.max(1, run.calls),
    fairNodes: jainIndex(run.servedBy),
    fairClients: jainIndex(byClient.map(({ length }) => length)),
    convergence: convergenceOf(rule, run.disturbances, timeline),
    age: run.ages.figures(),
    bytesPerSecond: (run.sentBytes * 1000) / nodes / spanMs,
    datagramsPerSecond: (run.sent * 1000) / nodes / spanMs,
    timeline: { everyMs: SLICE_MS, admitted: timeline },
  };
}

/** The most that fall into any span of that length. */
function peakWithin(times: readonly Millis[], windowMs: Millis): number {
  let most = 0;
  let from = 0;
  for (let to = 0; to < times.length; to++) {
    while (times[to] - times[from] >= windowMs) from++;
    most = Math.max(most, to - from + 1);
  }
  return most;
}

/**
 * How far a bucket that saw all of it would have gone below empty: calls beyond burst + rate × span, in the
 * worst of all spans there are.
 */
function overshootOf(times: readonly Millis[], rate: number, burst: number): number {
  let spent = 0;
  let last = Number.NEGATIVE_INFINITY;
  let most = 0;
  for (const at of times) {
    spent = Math.max(0, spent - ((at - last) * rate) / 1000) + 1;
    last = at;
    most = Math.max(most, spent - burst);
  }
  return Math.max(0, most);
}

function slicesOf({ admitted, startMs }: FleetRun, spanMs: Millis): number[] {
  const slices = Array<number>(Math.ceil(spanMs / SLICE_MS)).fill(0);
  for (const { at } of admitted) slices[Math.floor((at - startMs) / SLICE_MS)]++;
  return slices;
}

/** The rate is kept if whatever begins in this time is within so much of it: a window of a second or more. */
const RATE_TOLERANCE = 0.05;
const STABLE_WINDOWS = 3;
const WINDOW_CALLS = 100;

/** Where less is asked for than the rate, it is not the limit that is seen. */
const MIN_LOAD = 1.1;

function convergenceOf(
  { rate, clients, spanMs }: FleetLimit,
  turns: readonly Disturbance[],
  slices: readonly number[],
): FleetFigures['convergence'] {
  const perSlice = (rate * clients * SLICE_MS) / 1000;
  const window = Math.max(1000 / SLICE_MS, Math.ceil(WINDOW_CALLS / perSlice));
  const sums = [0];
  for (const own of slices) sums.push(sums[sums.length - 1] + own);
  const isKept = (from: number): boolean =>
    Math.abs(sums[from + window] - sums[from] - window * perSlice) <=
    RATE_TOLERANCE * window * perSlice;
  return turns.flatMap((turn, n) => {
    if (turn.load < MIN_LOAD) return [];
    const begin = Math.ceil(turn.atMs / SLICE_MS);
    const end = Math.floor((turns[n + 1]?.atMs ?? spanMs) / SLICE_MS) - window;
    const enough = Math.min(STABLE_WINDOWS * window, Math.floor((end - begin) / 2));
    let kept = 0;
    for (let at = begin; at <= end; at++) {
      kept = isKept(at) ? kept + 1 : 0;
      if (kept > enough) return { ...turn, afterMs: (at - kept + 1 - begin) * SLICE_MS };
    }
    return { ...turn, afterMs: Infinity };
  });
}

/** How old news was, counted in steps of one percent: there may be millions. */
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

  figures(): FleetFigures['age'] {
    if (this.#count === 0) return { meanMs: 0, p99Ms: 0, maxMs: 0 };
    let left = this.#count * 0.99;
    let step = 0;
    while (step < this.#counts.length && left > (this.#counts[step] ?? 0)) {
      left -= this.#counts[step++] ?? 0;
    }
    const p99Ms = Math.min(this.#max, MIN_AGE_MS * Math.exp(step * LOG_STEP));
    return { meanMs: this.#sum / this.#count, p99Ms, maxMs: this.#max };
  }
}

const MIN_AGE_MS: Millis = 0.01;
const LOG_STEP = Math.log(1.01);
