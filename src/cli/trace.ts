import type { Command } from './command.ts';

export const trace: Command = {
  name: 'trace',
  summary: 'run one limit over timed calls and print every decision',
  help: '',
  run: () => 0,
};
