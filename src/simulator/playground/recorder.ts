import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { jainIndex, sum } from '../statistics.ts';

/** Intervals of a run, whatever its length. */
export const INTERVALS = 120;

/** Chart values; null for an interval without data. */
type Values = readonly (number | null)[];

/** One value for each interval. */
export interface Series {
  /** Calls a second that arrived at the limit. */
  readonly offered: Values;
  readonly allowed: Values;
  readonly refused: Values;
  /** Calls a second that the server completed in time. */
  readonly completed: Values;
  /** How long allowed calls waited in the queue of the limiter, in milliseconds. */
  readonly waitP50: Values;
  readonly waitP95: Values;
  /** Time of completed calls at the server, in milliseconds. */
  readonly rttP50: Values;
  readonly rttP95: Values;
  /** Calls in flight, on average over the interval. */
  readonly inFlight: Values;
  /** The learnt limit: calls in flight, or calls or tokens a second; left out for other limits. */
  readonly learnt?: Values;
}

/** Figures of the whole run. */
export interface Totals {
  readonly offered: number;
  readonly allowed: number;
  readonly refused: number;
  readonly completed: number;
  readonly refusedByServer: number;
  readonly timedOut: number;
  readonly waitP50: number | null;
  readonly waitP95: number | null;
  readonly rttP50: number | null;
  readonly rttP95: number | null;
  readonly inFlightMean: number;
  readonly inFlightMax: number;
  /** Calls of each client; the hog is the first. */
  readonly offeredBy: readonly number[];
  readonly allowedBy: readonly number[];
  /** Jain's fairness index of the clients' allowed calls. */
  readonly fairness: number;
}

export interface RunResult {
  readonly series: Series;
  readonly totals: Totals;
}

/** Sorts values in a typed array: numeric order, several times as fast as an array. */
const sorted = (values: readonly number[]): Float64Array => Float64Array.from(values).sort();

/** The quantile of sorted values at the fraction `part`; null without values. */
export const quantile = (values: Float64Array, part: number): number | null =>
  values.length === 0
    ? null
    : values[Math.min(values.length - 1, Math.floor(part * values.length))];

const COUNTS = ['offered', 'allowed', 'refused', 'completed'] as const;
type Count = (typeof COUNTS)[number];

const counts = (): Record<Count, number> => ({ offered: 0, allowed: 0, refused: 0, completed: 0 });

export class Recorder {
  readonly #intervalMs: Millis;
  readonly #series: Record<string, (number | null)[]> = {};
  readonly #totals = { ...counts(), refusedByServer: 0, timedOut: 0 };
  readonly #offeredBy: number[];
  readonly #allowedBy: number[];
  readonly #waitsMs: Millis[] = [];
  readonly #rttsMs: Millis[] = [];
  #interval = counts();
  #intervalWaitsMs: Millis[] = [];
  #intervalRttsMs: Millis[] = [];
  #inFlight = 0;
  #inFlightMax = 0;
  /** Integral of calls in flight over the time of the interval. */
  #inFlightArea = 0;
  #updatedAt: Millis = 0;

  constructor(lengthMs: Millis, clients: number) {
    this.#intervalMs = lengthMs / INTERVALS;
    this.#offeredBy = Array(clients).fill(0);
    this.#allowedBy = Array(clients).fill(0);
  }

  offer(client: number): void {
    this.#count('offered');
    this.#offeredBy[client]++;
  }

  refuse(): void {
    this.#count('refused');
  }

  /** Records a call that is sent to the server. */
  start(client: number, waitedMs: Millis, now: Millis): void {
    this.#count('allowed');
    this.#allowedBy[client]++;
    this.#waitsMs.push(waitedMs);
    this.#intervalWaitsMs.push(waitedMs);
    this.#changeInFlight(1, now);
  }

  /** Records the end of a call: completed, refused or timed out. */
  end(outcome: Outcome, rttMs: Millis, now: Millis): void {
    this.#changeInFlight(-1, now);
    if (outcome === 'busy') this.#totals.refusedByServer++;
    else if (outcome === 'timeout') this.#totals.timedOut++;
    else if (outcome === 'ok') {
      this.#count('completed');
      this.#rttsMs.push(rttMs);
      this.#intervalRttsMs.push(rttMs);
    }
  }

  endInterval(learnt: number | undefined, now: Millis): void {
    this.#changeInFlight(0, now);
    const perSecond = 1000 / this.#intervalMs;
    for (const name of COUNTS) this.#push(name, this.#interval[name] * perSecond);
    const [waits, rtts] = [sorted(this.#intervalWaitsMs), sorted(this.#intervalRttsMs)];
    this.#push('waitP50', quantile(waits, 0.5));
    this.#push('waitP95', quantile(waits, 0.95));
    this.#push('rttP50', quantile(rtts, 0.5));
    this.#push('rttP95', quantile(rtts, 0.95));
    this.#push('inFlight', this.#inFlightArea / this.#intervalMs);
    if (learnt !== undefined) this.#push('learnt', learnt);
    this.#interval = counts();
    this.#intervalWaitsMs = [];
    this.#intervalRttsMs = [];
    this.#inFlightArea = 0;
  }

  result(): RunResult {
    const { inFlight = [] } = this.#series;
    const [waits, rtts] = [sorted(this.#waitsMs), sorted(this.#rttsMs)];
    return {
      series: this.#series as unknown as Series,
      totals: {
        ...this.#totals,
        waitP50: quantile(waits, 0.5),
        waitP95: quantile(waits, 0.95),
        rttP50: quantile(rtts, 0.5),
        rttP95: quantile(rtts, 0.95),
        inFlightMean: sum(inFlight as number[]) / Math.max(1, inFlight.length),
        inFlightMax: this.#inFlightMax,
        offeredBy: this.#offeredBy,
        allowedBy: this.#allowedBy,
        fairness: jainIndex(this.#allowedBy),
      },
    };
  }

  #count(name: Count): void {
    this.#interval[name]++;
    this.#totals[name]++;
  }

  #push(name: string, value: number | null): void {
    const known = this.#series[name];
    if (known) known.push(value);
    else this.#series[name] = [value];
  }

  #changeInFlight(by: number, now: Millis): void {
    this.#inFlightArea += this.#inFlight * (now - this.#updatedAt);
    this.#updatedAt = now;
    this.#inFlight += by;
    this.#inFlightMax = Math.max(this.#inFlightMax, this.#inFlight);
  }
}
