/** A run of a fleet as lines for a terminal: how exact, how even, how fast, at what cost. */

import type { FleetFigures } from '../../simulator/peers/figures.ts';
import { type FleetOptions, PEERS } from '../../simulator/peers/fleet.ts';
import { QUIET_NETWORK } from '../../simulator/peers/network.ts';
import { aligned } from '../chart/table.ts';

export function tablesOf(fleet: FleetOptions, figures: FleetFigures): string[] {
  return [...storyOf(fleet), '', ...windowsOf(figures), '', ...restOf(fleet, figures)];
}

/** What was played, in two lines or three. */
function storyOf(fleet: FleetOptions): string[] {
  const { nodes, rate, burst, load, loadStep, clients, spanMs, peers, network } = fleet;
  const { exchange, intervalMs } = { ...PEERS, ...peers };
  const { delayMs, jitterMs, loss } = { ...QUIET_NETWORK, ...network };
  const who = clients > 1 ? `, ${clients} clients` : '';
  const way = jitterMs > 0 ? `${delayMs}-${delayMs + jitterMs} ms` : `${delayMs} ms`;
  const lost = loss > 0 ? `, ${percent(loss)} lost` : '';
  const step = loadStep ? [`from ${timeOf(loadStep.atMs)} on ${loadStep.load} times that`] : [];
  return [
    `${nodes} nodes, ${rate} calls/s, burst ${burst}, asked ${load} times that${who}, for ${timeOf(spanMs)}`,
    `told by ${exchange}, every ${timeOf(intervalMs)}; ${way} apart${lost}`,
    ...step,
  ];
}

function windowsOf({ worst, overshoot }: FleetFigures): string[] {
  const rows = Object.keys(worst).map((ms) => [
    timeOf(Number(ms)),
    `${worst[Number(ms)].toFixed(3)} x`,
    percent(overshoot[Number(ms)]),
  ]);
  return aligned([['window', 'worst', 'overshoot'], ...rows], '  ');
}

function restOf({ nodes, clients }: FleetOptions, figures: FleetFigures): string[] {
  const { excess, bound, age, convergence } = figures;
  const isKept = excess <= bound ? '' : ': BROKEN';
  const settled = convergence.map(({ what, atMs, afterMs }) => {
    const after = afterMs === Infinity ? 'not before the next' : `after ${timeOf(afterMs)}`;
    return what === 'start' ? `start ${after}` : `${what} at ${timeOf(atMs)} ${after}`;
  });
  const rows: [name: string, text: string][] = [
    ['excess', `${round(excess)} calls, bound ${round(bound)}${isKept}`],
    ['utilisation', percent(figures.utilisation)],
    ['mean', `${percent(figures.mean)} of the rate in the second half`],
    ['wrong', `${percent(figures.tooMany)} too many, ${percent(figures.tooFew)} too few`],
    [
      'fair',
      `nodes ${fair(figures.fairNodes, nodes)}, clients ${fair(figures.fairClients, clients)}`,
    ],
    ['age', `mean ${ms(age.meanMs)}, p99 ${ms(age.p99Ms)}, most ${ms(age.maxMs)}`],
    [
      'cost',
      `${round(figures.datagramsPerSecond)} datagrams/s, ${round(figures.bytesPerSecond)} bytes/s a node`,
    ],
    ...settled.map((text, n): [string, string] => [n === 0 ? 'settled' : '', text]),
  ];
  return rows.map(([name, text]) => `${name.padEnd(11)}  ${text}`);
}

/** One alone is always fair. */
const fair = (index: number, of: number): string => (of > 1 ? index.toFixed(3) : '-');

export const timeOf = (ms: number): string => (ms < 1000 ? `${ms} ms` : `${round(ms / 1000)} s`);

const ms = (value: number): string => (value < 1000 ? `${round(value)} ms` : timeOf(value));

const round = (value: number): string => String(Number(value.toPrecision(value < 1000 ? 3 : 6)));

const percent = (part: number): string => `${Number((part * 100).toFixed(2))} %`;
