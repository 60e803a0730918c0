/** A run of a fleet as a picture: what was let through over time, against the limit. */

import type { FleetFigures } from '../../simulator/peers/figures.ts';
import { type FleetOptions, PEERS } from '../../simulator/peers/fleet.ts';
import { type Phase, type Point, roundAxisEnd } from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';
import { formatDuration } from './peers-table.ts';

/** So many steps are as many as can be told apart. */
const MAX_STEPS = 600;

/** For so long it is the burst that is seen. */
const BURST_SECONDS = 1.5;

/** It is cut off if it is so many times as high as all the rest. */
const CLIP_RATIO = 2;

export function pictureOf(fleet: FleetOptions, figures: FleetFigures): Picture {
  const { nodes, rate, clients, spanMs, peers, loadStep } = fleet;
  const { exchange, intervalMs } = { ...PEERS, ...peers };
  const { points, everyMs } = rateSteps(figures, spanMs);
  const limit = rate * clients;
  const end = spanMs / 1000;
  const rates = points.map(([, y]) => y ?? 0);
  // A burst, at the start or when the load comes, is over in a moment, and would make all the rest small.
  const startsS = [0, (loadStep?.atMs ?? 0) / 1000];
  const isBurst = (x: number): boolean => startsS.some((at) => x >= at && x < at + BURST_SECONDS);
  const later = points.flatMap(([x, y]) => (isBurst(x) ? [] : [y ?? 0]));
  const isDwarfed = Math.max(...rates) > CLIP_RATIO * Math.max(...later, limit);
  const top = roundAxisEnd([...(isDwarfed ? later : rates), limit * 2]);
  const cut = Math.max(...rates.filter((_, n) => isBurst(points[n][0])));
  const phases = phasesOf(fleet);
  return {
    title: `${nodes} nodes keep one limit: ${exchange}, every ${formatDuration(intervalMs)}`,
    charts: [
      {
        title: cut > top ? `cut off: the burst, ${Math.round(cut)} calls/s` : '',
        x: { label: 'time, in seconds', from: 0, to: end },
        y: {
          label: `calls/s, over ${formatDuration(everyMs)}`,
          from: 0,
          to: top,
        },
        series: [
          { name: 'let through by all nodes', style: 'bars', points },
          {
            name: `limit ${limit}/s`,
            style: 'line',
            points: [
              [0, limit],
              [end, undefined],
            ],
          },
        ],
        ...(phases.length > 0 && { phases }),
      },
    ],
  };
}

function rateSteps(
  { timeline }: FleetFigures,
  spanMs: number,
): { points: Point[]; everyMs: number } {
  const { everyMs, admitted } = timeline;
  const each = Math.ceil(spanMs / everyMs / MAX_STEPS);
  const points: Point[] = [];
  for (let at = 0; at < admitted.length; at += each) {
    const slices = admitted.slice(at, at + each);
    const calls = slices.reduce((sum, own) => sum + own, 0);
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
  const sliver = spanMs / 400;
  const spans = [
    ...(loadStep
      ? [{ name: `asked for: ${loadStep.load} x the rate`, from: loadStep.atMs, to: spanMs }]
      : []),
    ...(split ? [{ name: 'split', from: split.fromMs, to: split.toMs }] : []),
    ...(crash ? [{ name: `node ${crash.node} away`, from: crash.atMs, to: crash.backMs }] : []),
    ...(clockStep
      ? [{ name: 'clock step', from: clockStep.atMs, to: clockStep.atMs + sliver }]
      : []),
  ];
  return spans.map(({ name, from, to }) => ({ name, from: from / 1000, to: to / 1000 }));
}
