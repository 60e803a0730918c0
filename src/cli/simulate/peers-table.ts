import { peersOf } from '../../simulator/peers/bound.ts';
import type { PeersFigures } from '../../simulator/peers/figures.ts';
import type { FleetOptions } from '../../simulator/peers/fleet.ts';
import { networkOf } from '../../simulator/peers/network.ts';
import { formatDuration, formatSignificant, roundTo } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';

export function formatTables(fleet: FleetOptions, figures: PeersFigures): string[] {
  return [
    ...scenarioLines(fleet),
    '',
    ...windowTable(figures),
    '',
    ...summaryLines(fleet, figures),
  ];
}

function scenarioLines(fleet: FleetOptions): string[] {
  const { nodes, rate, burst, load, loadStep, clients, spanMs } = fleet;
  const { exchange, intervalMs } = peersOf(fleet);
  const { delayMs, jitterMs, loss } = networkOf(fleet);
  const each = clients > 1 ? `, ${clients} clients` : '';
  const delay = jitterMs > 0 ? `${delayMs}-${delayMs + jitterMs} ms` : `${delayMs} ms`;
  const lost = loss > 0 ? `, ${percent(loss)} loss` : '';
  const step = loadStep
    ? [`from ${formatDuration(loadStep.atMs)} on: load ${loadStep.load} x the rate`]
    : [];
  return [
    `${nodes} nodes, ${rate} calls/s, burst ${burst}, load ${load} x the rate${each}, for ${formatDuration(spanMs)}`,
    `${exchange} exchange, every ${formatDuration(intervalMs)}; network delay ${delay}${lost}`,
    ...step,
  ];
}

function windowTable({ worst, overshootRatio }: PeersFigures): string[] {
  const rows = Object.keys(worst).map((ms) => [
    formatDuration(Number(ms)),
    `${worst[Number(ms)].toFixed(3)} x`,
    percent(overshootRatio[Number(ms)]),
  ]);
  return alignColumns([['window', 'worst', 'overshoot'], ...rows], '  ');
}

function summaryLines({ nodes, clients }: FleetOptions, figures: PeersFigures): string[] {
  const { overshootCalls, bound, age, convergence } = figures;
  const verdict = overshootCalls <= bound ? '' : ': EXCEEDED';
  const converged = convergence.map(({ what, atMs, afterMs }) => {
    const event = what === 'start' ? what : `${what} at ${formatDuration(atMs)}`;
    return `${event}: ${afterMs === Infinity ? 'not before the next event' : `after ${formatDuration(afterMs)}`}`;
  });
  const rows: [name: string, text: string][] = [
    [
      'overshoot',
      `${formatSignificant(overshootCalls)} calls, bound ${formatSignificant(bound)}${verdict}`,
    ],
    ['utilisation', percent(figures.utilisation)],
    ['mean rate', `${percent(figures.mean)} of the limit in the second half`],
    [
      'errors',
      `${percent(figures.falseAllows)} wrong allows, ${percent(figures.falseDenials)} wrong denies`,
    ],
    [
      'fairness',
      `nodes ${formatFairness(figures.fairNodes, nodes)}, clients ${formatFairness(figures.fairClients, clients)}`,
    ],
    [
      'view age',
      `mean ${formatDuration(age.meanMs)}, p99 ${formatDuration(age.p99Ms)}, max ${formatDuration(age.maxMs)}`,
    ],
    [
      'traffic',
      `${formatSignificant(figures.datagramsPerSecond)} datagrams/s, ${formatSignificant(figures.bytesPerSecond)} bytes/s per node`,
    ],
    ...converged.map((text, n): [string, string] => [n === 0 ? 'convergence' : '', text]),
  ];
  return rows.map(([name, text]) => `${name.padEnd(11)}  ${text}`);
}

/** The index of a single member is always 1. */
const formatFairness = (index: number, of: number): string => (of > 1 ? index.toFixed(3) : '-');

const percent = (fraction: number): string => `${roundTo(fraction * 100, 2)} %`;
