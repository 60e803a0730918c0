/** `sluice simulate`: the rules on virtual time, with pictures. */

import type { CommandGroup } from '../framework/command.ts';
import { simulateAdaptive } from './adaptive.ts';
import { simulateGroups } from './groups.ts';
import { simulatePeers } from './peers.ts';
import { simulateRamp } from './ramp.ts';
import { simulateSweep } from './sweep.ts';
import { simulateTchannel } from './tchannel.ts';

export const simulate: CommandGroup = {
  name: 'simulate',
  summary: 'runs a rule on virtual time and draws what happens',
  commands: [
    simulateAdaptive,
    simulateGroups,
    simulatePeers,
    simulateRamp,
    simulateSweep,
    simulateTchannel,
  ],
};
