import type { Millis } from '../../core/clock.ts';
import type { Timeline } from '../timeline.ts';
import type { Caller } from './callers.ts';
import type { ScenarioNode } from './node.ts';
import type { Scenario } from './scenario.ts';

const SAMPLES = 300;

export class LimitSamples {
  readonly everyMs: Millis;
  /** Values since the first instant; NaN where the limit has no such number. */
  readonly values = new Float64Array(SAMPLES).fill(Number.NaN);

  /** Samples the limit for the first caller's key, in the first running node. */
  constructor(
    { durationMs, startMs }: Scenario,
    timeline: Timeline,
    nodes: readonly ScenarioNode[],
    caller: Caller,
  ) {
    this.everyMs = durationMs / SAMPLES;
    const read = (n: number): void => {
      const node = nodes.find(({ isUp, isFrozen }) => isUp && !isFrozen);
      const state = node?.local?.inspect(node.key ?? caller.keys[0]);
      this.values[n] = state?.limit ?? state?.level ?? Number.NaN;
      if (nodes[0].local && n + 1 < SAMPLES) scheduleRead(n + 1);
    };
    const scheduleRead = (n: number): void =>
      timeline.scheduleAt(startMs + n * this.everyMs, () => read(n));
    scheduleRead(0);
  }

  get isPresent(): boolean {
    return this.values.some((value) => !Number.isNaN(value));
  }

  mean(fromMs: Millis, toMs: Millis): number {
    const within = this.values.filter((value, n) => {
      const at = n * this.everyMs;
      return at >= fromMs && at < toMs && !Number.isNaN(value);
    });
    return within.reduce((sum, value) => sum + value, 0) / within.length;
  }
}
