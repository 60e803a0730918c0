/** A run of a fleet as lines for a terminal: how exact, how even, how fast, at what cost. */

import type { FleetFigures } from '../../simulator/peers/figures.ts';
import { type FleetOptions, PEERS } from '../../simulator/peers/fleet.ts';
import { DEFAULT_NETWORK } from '../../simulator/peers/network.ts';
import { alignColumns } from '../chart/table.ts';

export function formatTables(fleet: FleetOptions, figures: FleetFigures): string[] {
  return [
    ...scenarioLines(fleet),
    '',
    ...windowTable(figures),
    '',
    ...summaryLines(fleet, figures),
  ];
}

/** What was played, in two lines or three. */
function scenarioLines(fleet: FleetOptions): string[] {
  const { nodes, rate, burst, load, loadStep, clients, spanMs, peers, network } = fleet;
  const { exchange, intervalMs } = { ...PEERS, ...peers };
  const { delayMs, jitterMs, loss } = { ...DEFAULT_NETWORK, ...network };
  const who = clients > 1 ? `, ${clients} clients` : '';
  const way = jitterMs > 0 ? `${delayMs}-${delayMs + jitterMs} ms` : `${delayMs} ms`;
  const lost = loss > 0 ? `, ${formatPercent(loss)} lost` : '';
  const step = loadStep
    ? [`from ${formatDuration(loadStep.atMs)} on ${loadStep.load} times that`]
    : [];
  return [
    `${nodes} nodes, ${rate} calls/s, burst ${burst}, asked ${load} times that${who}, for ${formatDuration(spanMs)}`,
    `told by ${exchange}, every ${formatDuration(intervalMs)}; ${way} apart${lost}`,
    ...step,
  ];
}

function windowTable({ worst, overshootRatio }: FleetFigures): string[] {
  const rows = Object.keys(worst).map((ms) => [
    formatDuration(Number(ms)),
    `${worst[Number(ms)].toFixed(3)} x`,
    formatPercent(overshootRatio[Number(ms)]),
  ]);
  return alignColumns([['window', 'worst', 'overshoot'], ...rows], '  ');
}

function summaryLines({ nodes, clients }: FleetOptions, figures: FleetFigures): string[] {
  const { overshootCalls, bound, age, convergence } = figures;
  const isKept = overshootCalls <= bound ? '' : ': BROKEN';
  const settled = convergence.map(({ what, atMs, afterMs }) => {
    const after = afterMs === Infinity ? 'not before the next' : `after ${formatDuration(afterMs)}`;
    return what === 'start' ? `start ${after}` : `${what} at ${formatDuration(atMs)} ${after}`;
  });
  const rows: [name: string, text: string][] = [
    ['excess', `${formatNumber(overshootCalls)} calls, bound ${formatNumber(bound)}${isKept}`],
    ['utilisation', formatPercent(figures.utilisation)],
    ['mean', `${formatPercent(figures.mean)} of the rate in the second half`],
    [
      'wrong',
      `${formatPercent(figures.falseAllows)} too many, ${formatPercent(figures.falseDenials)} too few`,
    ],
    [
      'fair',
      `nodes ${formatFairness(figures.fairNodes, nodes)}, clients ${formatFairness(figures.fairClients, clients)}`,
    ],
    [
      'age',
      `mean ${formatMs(age.meanMs)}, p99 ${formatMs(age.p99Ms)}, most ${formatMs(age.maxMs)}`,
    ],
    [
      'cost',
      `${formatNumber(figures.datagramsPerSecond)} datagrams/s, ${formatNumber(figures.bytesPerSecond)} bytes/s a node`,
    ],
    ...settled.map((text, n): [string, string] => [n === 0 ? 'settled' : '', text]),
  ];
  return rows.map(([name, text]) => `${name.padEnd(11)}  ${text}`);
}

/** One alone is always fair. */
const formatFairness = (index: number, of: number): string => (of > 1 ? index.toFixed(3) : '-');

export const formatDuration = (ms: number): string =>
  ms < 1000 ? `${ms} ms` : `${formatNumber(ms / 1000)} s`;

const formatMs = (value: number): string =>
  value < 1000 ? `${formatNumber(value)} ms` : formatDuration(value);

const formatNumber = (value: number): string =>
  String(Number(value.toPrecision(value < 1000 ? 3 : 6)));

const formatPercent = (part: number): string => `${Number((part * 100).toFixed(2))} %`;
