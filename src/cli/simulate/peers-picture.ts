import { peersOf } from '../../simulator/peers/bound.ts';
import type { PeersFigures } from '../../simulator/peers/figures.ts';
import type { FleetOptions } from '../../simulator/peers/fleet.ts';
import { levelLine, type Phase, type Point, roundAxisEnd, secondsAxis } from '../chart/chart.ts';
import { formatDuration } from '../chart/format.ts';
import type { Picture } from '../chart/svg.ts';

/** More steps than this would be narrower than a pixel. */
const MAX_STEPS = 600;

/** Duration of the burst at the start and after a load step. */
const BURST_SECONDS = 1.5;

/** A burst this many times as high as everything else is clipped. */
const CLIP_RATIO = 2;

export function pictureOf(fleet: FleetOptions, figures: PeersFigures): Picture {
  const { nodes, rate, clients, spanMs, loadStep } = fleet;
  const { exchange, intervalMs } = peersOf(fleet);
  const { points, everyMs } = rateSteps(figures, spanMs);
  const limit = rate * clients;
  const end = spanMs / 1000;
  const rates = points.map(([, y]) => y ?? 0);
  // A burst is short. On its scale the rest of the chart would be flat.
  const startsS = [0, (loadStep?.atMs ?? 0) / 1000];
  const isBurst = (x: number): boolean => startsS.some((at) => x >= at && x < at + BURST_SECONDS);
  const later = points.flatMap(([x, y]) => (isBurst(x) ? [] : [y ?? 0]));
  const isClipped = Math.max(...rates) > CLIP_RATIO * Math.max(...later, limit);
  const top = roundAxisEnd([...(isClipped ? later : rates), limit * 2]);
  const burst = Math.max(...rates.filter((_, n) => isBurst(points[n][0])));
  const phases = phasesOf(fleet);
  return {
    title: `${nodes} nodes share one limit: ${exchange} exchange, every ${formatDuration(intervalMs)}`,
    charts: [
      {
        title: burst > top ? `burst clipped: ${Math.round(burst)} calls/s` : '',
        x: secondsAxis(end),
        y: { label: `calls/s, mean of ${formatDuration(everyMs)}`, from: 0, to: top },
        series: [
          { name: 'allowed by all nodes', style: 'bars', points },
          levelLine(`limit ${limit}/s`, limit, end),
        ],
        ...(phases.length > 0 && { phases }),
      },
    ],
  };
}

function rateSteps(
  { timeline }: PeersFigures,
  spanMs: number,
): { points: Point[]; everyMs: number } {
  const { everyMs, admitted } = timeline;
  const each = Math.ceil(spanMs / everyMs / MAX_STEPS);
  const points: Point[] = [];
  for (let at = 0; at < admitted.length; at += each) {
    const slices = admitted.slice(at, at + each);
    const calls = slices.reduce((sum, count) => sum + count, 0);
    points.push([(at * everyMs) / 1000, (calls * 1000) / (slices.length * everyMs)]);
  }
  return { points, everyMs: each * everyMs };
}

function phasesOf({
  network: { split },
  crash,
  clockStep,
  loadStep,
  spanMs,
}: FleetOptions): Phase[] {
  const phase = (name: string, fromMs: number, toMs: number): Phase => ({
    name,
    from: fromMs / 1000,
    to: toMs / 1000,
  });
  const minWidthMs = spanMs / 400;
  return [
    loadStep && phase(`load: ${loadStep.load} x the rate`, loadStep.atMs, spanMs),
    split && phase('partition', split.fromMs, split.toMs),
    crash && phase(`node ${crash.node} down`, crash.atMs, crash.backMs),
    clockStep && phase('clock step', clockStep.atMs, clockStep.atMs + minWidthMs),
  ].filter((one) => one !== undefined);
}
