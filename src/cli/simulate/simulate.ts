/** `sluice simulate`: the rules on virtual time, with pictures. */

import type { CommandGroup } from '../command.ts';

export const simulate: CommandGroup = {
  name: 'simulate',
  summary: 'run a rule on virtual time and draw what happens',
  commands: [],
};
