/** The command line of a simulated fleet, so that a failed run can be reproduced. */

import {
  FLEET_DEFAULTS,
  type FleetOptions,
  PEER_DEFAULTS,
} from '../../src/simulator/peers/fleet.ts';
import { DEFAULT_NETWORK } from '../../src/simulator/peers/network.ts';

/** The command that runs this fleet again, without flags that have their default. */
export function commandLineOf(fleet: FleetOptions): string {
  const { peers, loadStep, crash, clockStep } = fleet;
  const { split, delayMs, jitterMs, loss, duplicates } = { ...DEFAULT_NETWORK, ...fleet.network };
  const defaults = FLEET_DEFAULTS;
  const { exchange, intervalMs, flushThreshold, maxReports } = { ...PEER_DEFAULTS, ...peers };
  const flags: readonly (readonly [name: string, value: unknown, defaultValue: unknown])[] = [
    ['nodes', fleet.nodes, defaults.nodes],
    ['rate', fleet.rate, defaults.rate],
    ['burst', fleet.burst, defaults.burst],
    ['load', fleet.load, defaults.load],
    ['load-step', loadStep && `${loadStep.load}@${loadStep.atMs / 1000}`, undefined],
    ['clients', fleet.clients, defaults.clients],
    ['skew', fleet.skew, defaults.skew],
    ['span', `${fleet.spanMs}ms`, `${defaults.spanMs}ms`],
    ['exchange', exchange, PEER_DEFAULTS.exchange],
    ['interval', `${intervalMs}ms`, `${PEER_DEFAULTS.intervalMs}ms`],
    ['flush-threshold', flushThreshold, PEER_DEFAULTS.flushThreshold],
    ['max-reports', maxReports, PEER_DEFAULTS.maxReports],
    ['delay', `${delayMs}ms`, `${DEFAULT_NETWORK.delayMs}ms`],
    ['jitter', `${jitterMs}ms`, '0ms'],
    ['loss', loss, 0],
    ['duplicates', duplicates, 0],
    ['split', split && `${split.fromMs / 1000}-${split.toMs / 1000}:${split.nodes}`, undefined],
    ['crash', crash && `${crash.node}@${crash.atMs / 1000}-${crash.backMs / 1000}`, undefined],
    [
      'clock-step',
      clockStep && `${clockStep.node}@${clockStep.atMs / 1000}:${clockStep.byMs}ms`,
      undefined,
    ],
    ['seed', fleet.seed, defaults.seed],
  ];
  const given = flags.filter(([, value, defaultValue]) => value !== defaultValue);
  return ['sluice simulate peers', ...given.map(([name, value]) => `--${name} ${value}`)].join(' ');
}
