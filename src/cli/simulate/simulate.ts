/** `sluice simulate`: simulations of limits on virtual time. */

import type { CommandGroup } from '../framework/command.ts';
import { simulateAdaptive } from './adaptive.ts';
import { simulateGroups } from './groups.ts';
import { simulatePeers } from './peers.ts';
import { simulateRamp } from './ramp.ts';
import { simulateScenario } from './scenario.ts';
import { simulateSweep } from './sweep.ts';
import { simulateTchannel } from './tchannel.ts';

export const simulate: CommandGroup = {
  name: 'simulate',
  fileCommand: simulateScenario,
  summary: 'simulates a limit on virtual time: tables, charts, JSON',
  commands: [
    simulateAdaptive,
    simulateGroups,
    simulatePeers,
    simulateRamp,
    simulateSweep,
    simulateTchannel,
  ],
};
