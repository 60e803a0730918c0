/** What a run of regions comes to: how much of the limit was used, and by how much it was exceeded. */

import type { Millis } from '../../core/clock.ts';
import type { RegionsOptions, RegionsRun } from './run.ts';

export interface RegionsFigures {
  /** Calls let through, as a part of what the limit allows or, if that is less, of what was asked for. */
  readonly utilisation: number;
  /** Calls beyond burst + rate × span, in the worst of all spans. */
  readonly overshootCalls: number;
  /** What that can never exceed. */
  readonly bound: number;
  /** By region, calls let through a second. */
  readonly rates: ReadonlyMap<string, number>;
  readonly answerMs: number;
}

export function figuresOf(run: RegionsRun, options: RegionsOptions): RegionsFigures {
  const { rate, burst, spanMs, deadlineMs } = options;
  const times = [...run.admitted.values()].flat().sort((a, b) => a - b);
  const asked = [...run.requested.values()].reduce((sum, own) => sum + own, 0);
  const could = Math.min(asked, burst + (rate * spanMs) / 1000);
  return {
    utilisation: times.length / Math.max(1, could),
    overshootCalls: overshootOf(times, rate, burst),
    bound: (rate * deadlineMs) / 1000,
    rates: new Map([...run.admitted].map(([name, own]) => [name, (own.length * 1000) / spanMs])),
    answerMs: run.meanLatencyMs,
  };
}

/** How far a bucket that saw all of them would be in debt: the most beyond burst + rate × span, in any span. */
export function overshootOf(times: readonly Millis[], rate: number, burst: number): number {
  let tokens = burst;
  let last = 0;
  let worst = 0;
  for (const at of times) {
    tokens = Math.min(burst, tokens + ((at - last) * rate) / 1000) - 1;
    last = at;
    worst = Math.max(worst, -tokens);
  }
  return worst;
}
