/** `sluice config check`: says whether a configuration makes sense before a daemon has to. */

import { formatListenAddress } from '../daemon/config/listen.ts';
import type { Config } from '../daemon/config/read.ts';
import {
  type Command,
  type CommandGroup,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  readArgs,
  readTextFile,
  type Terminal,
  UsageError,
} from './framework/command.ts';
import { loadWithEnvironment } from './framework/configuration.ts';

const check: Command = {
  name: 'check',
  summary: 'says whether a configuration file makes sense',
  help: `usage: sluice config check FILE

Reads a configuration as \`serve\` would, with what the environment says, such as SLUICE_PEERS_KEY, and
says what is wrong with it: line, field, what was expected. All of it, up to 20 mistakes at once.
Nothing is started and nothing is connected to.

Exit code 0 if the file is fine, 1 if it is not, 2 if it cannot be read.

example:
  sluice config check sluice.yaml`,

  run(args, terminal) {
    const { positionals } = readArgs(args, {});
    const [file, ...others] = positionals;
    if (file === undefined || others.length > 0) {
      throw new UsageError('expected one file; see --help');
    }
    readTextFile(file); // what cannot be read was not looked at: that is no answer
    const loaded = loadWithEnvironment(file);
    if ('config' in loaded) {
      printSummary(file, loaded.config, terminal);
      return EXIT_OK;
    }
    for (const problem of loaded.problems) terminal.error(problem);
    return EXIT_CHECK_FAILED;
  },
};

function printSummary(file: string, { limits, listen, groups }: Config, terminal: Terminal): void {
  const overrides = limits.reduce((sum, limit) => sum + limit.overrides.length, 0);
  const counted = [
    `${limits.length} ${limits.length === 1 ? 'limit' : 'limits'}`,
    overrides > 0 && `${overrides} ${overrides === 1 ? 'override' : 'overrides'}`,
  ].filter((part) => part !== false);
  terminal.print(`${file} is fine: ${counted.join(', ')}`);
  const surfaces = Object.entries({ ...listen, ...(groups && { groups: groups.listen }) });
  const width = Math.max(...surfaces.map(([surface]) => surface.length));
  for (const [surface, listens] of surfaces) {
    const where = listens.map(formatListenAddress).join(', ') || 'off';
    terminal.print(`  ${surface.padEnd(width)}  ${where}`);
  }
}

export const config: CommandGroup = {
  name: 'config',
  summary: "looks at a daemon's configuration",
  commands: [check],
};
