import { overshootOf } from '../overshoot.ts';
import type { RegionsOptions, RegionsRun } from './run.ts';

export interface RegionsFigures {
  /** Admitted calls relative to the limit, or to the demand if that is lower. */
  readonly utilisation: number;
  /** Overshoot: the most calls above burst + rate × span, over all spans. */
  readonly overshootCalls: number;
  /** Upper bound of `overshootCalls`. */
  readonly bound: number;
  /** Admitted calls per second, by region. */
  readonly rates: ReadonlyMap<string, number>;
  readonly meanLatencyMs: number;
}

export function figuresOf(run: RegionsRun, options: RegionsOptions): RegionsFigures {
  const { rate, burst, spanMs, deadlineMs } = options;
  const times = [...run.admitted.values()].flat().sort((a, b) => a - b);
  const demand = [...run.requested.values()].reduce((sum, calls) => sum + calls, 0);
  const possible = Math.min(demand, burst + (rate * spanMs) / 1000);
  return {
    utilisation: times.length / Math.max(1, possible),
    overshootCalls: overshootOf(times, rate, burst),
    bound: (rate * deadlineMs) / 1000,
    rates: new Map(
      [...run.admitted].map(([name, calls]) => [name, (calls.length * 1000) / spanMs]),
    ),
    meanLatencyMs: run.meanLatencyMs,
  };
}
