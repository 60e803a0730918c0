import { formatListenAddress } from '../core/listen-address.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import { loadConfig } from '../daemon/config/file.ts';
import { type Config, listenAddressesOf } from '../daemon/config/read.ts';
import { alignColumns } from './chart/table.ts';
import {
  type Command,
  type CommandGroup,
  countOf,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  onlyPositional,
  readArgs,
  readTextFile,
  type Terminal,
} from './framework/command.ts';
import { configFlags, overridesOf } from './framework/configuration.ts';

const checkCommand = (modules: readonly BackendModule[]): Command => ({
  help: `usage: sluice config check FILE [options]

Reads a configuration as \`serve\` would, with its environment variables and options (sluice serve --help), and
prints its mistakes: line, field, what was expected. Up to 20 mistakes at once.
Starts nothing and connects to nothing.

Exit code 0 if the file is valid, 1 if it is not, 2 if it cannot be read.

examples:
  sluice config check sluice.yaml
  sluice config check sluice.yaml --http 0.0.0.0:7612`,

  run(args, terminal) {
    const { positionals, values } = readArgs(args, configFlags(modules));
    const file = onlyPositional(positionals, 'file');
    readTextFile(file); // a file that cannot be read is a usage error, not an invalid configuration
    const loaded = loadConfig(file, overridesOf(values, modules), modules);
    if ('config' in loaded) {
      printSummary(file, loaded.config, terminal);
      return EXIT_OK;
    }
    for (const problem of loaded.problems) terminal.error(problem);
    return EXIT_CHECK_FAILED;
  },
});

function printSummary(file: string, config: Config, terminal: Terminal): void {
  const { limits } = config;
  const overrides = limits.reduce((sum, limit) => sum + limit.overrides.length, 0);
  const also = overrides > 0 ? `, ${countOf(overrides, 'override')}` : '';
  terminal.print(`${file} is valid: ${countOf(limits.length, 'limit')}${also}`);
  const rows = Object.entries(listenAddressesOf(config)).map(([protocol, addresses]) => [
    protocol,
    addresses.map(formatListenAddress).join(', ') || 'off',
  ]);
  for (const line of alignColumns(rows, '  ', 2)) terminal.print(`  ${line.trimEnd()}`);
}

export const configCommands = (modules: readonly BackendModule[]): CommandGroup => ({
  commands: [
    {
      name: 'check',
      summary: 'validates a configuration file',
      load: () => checkCommand(modules),
    },
  ],
});
