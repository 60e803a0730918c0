import type { Millis } from '../../core/clock.ts';
import { type Chart, roundAxisEnd } from '../chart/chart.ts';
import type { Timeline } from './timeline.ts';
import { formatTime } from './times.ts';

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Round distances between labels. */
const TICK_STEPS: readonly Millis[] = [
  ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR),
  ...[1, 2, 7, 14, 28, 91, 364, 3640].map((days) => days * DAY),
];

/** One step of the timeline is 1 on the x axis, so that all bars have the same width. */
export function timeChart(
  timeline: Timeline,
  zoneMinutes: number,
  title: string,
  deniedName: string,
  maxSteps: number,
): Chart {
  const { stepMs, steps } = timeline.steps(maxSteps);
  const start = steps[0]?.at ?? 0;
  const perSecond = (calls: number): number => calls / (stepMs / SECOND);
  const zoneMs = zoneMinutes * MINUTE;
  const spanMs = steps.length * stepMs;
  return {
    title,
    x: {
      label: 'time',
      from: 0,
      to: Math.max(1, steps.length),
      ticks(maxTicks) {
        const step = TICK_STEPS.find((each) => spanMs / each <= maxTicks - 1) ?? spanMs;
        const first = Math.ceil((start + zoneMs) / step) * step - zoneMs;
        const count = Math.max(0, Math.floor((start + spanMs - first) / step) + 1);
        return Array.from({ length: count }, (_, n) => (first + n * step - start) / stepMs);
      },
      format: (value) => tickLabel(start + value * stepMs, zoneMinutes, spanMs),
    },
    y: {
      label: 'calls/s',
      from: 0,
      to: roundAxisEnd(steps.map(({ calls }) => perSecond(calls))),
    },
    series: [
      { name: 'calls', style: 'shade', points: steps.map(({ calls }, n) => [n, perSecond(calls)]) },
      {
        name: deniedName,
        style: 'bars',
        points: steps.map(({ denied }, n) => [n, perSecond(denied)]),
      },
    ],
  };
}

/** The part of a time that differs between labels. */
function tickLabel(at: Millis, zoneMinutes: number, spanMs: Millis): string {
  const [day, time] = formatTime(at, zoneMinutes).split(' ');
  if (spanMs > 2 * DAY) return day.slice(5);
  return spanMs > 10 * MINUTE ? time.slice(0, 5) : time;
}
