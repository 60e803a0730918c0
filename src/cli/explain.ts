import { toPrintableLine } from '../core/printable.ts';
import type { BackendModule } from '../daemon/backends/registry.ts';
import { toBinaryKey } from '../daemon/keys/binary-key.ts';
import { explainRoute } from '../daemon/router/explain.ts';
import { dryRunRegistry } from '../daemon/router/limiter-registry.ts';
import { RouteTable } from '../daemon/router/routes.ts';
import {
  type Command,
  EXIT_OK,
  onlyPositional,
  readArgs,
  SWITCH,
  TEXT,
} from './framework/command.ts';
import { configPath, loadWithEnvironment, requireConfig } from './framework/configuration.ts';

export const explainCommand = (modules: readonly BackendModule[]): Command => ({
  help: `usage: sluice explain KEY [--config FILE] [--json]

Shows which limits of a configuration apply to a key, and why the others do not. Reads the
configuration only: no daemon is queried, and nothing is counted.

options:
  --config FILE   the configuration; default $SLUICE_CONFIG, else the defaults of a daemon
  --json          the same as JSON

example:
  sluice explain ip:10.1.2.3 --config sluice.yaml`,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, { config: TEXT, json: SWITCH });
    const text = onlyPositional(positionals, 'key');
    const config = requireConfig(loadWithEnvironment(configPath(values.config), modules));
    const binaryKey = toBinaryKey(text);
    const table = new RouteTable(config, dryRunRegistry(config.limits));
    const explained = explainRoute(table.find(binaryKey), table, binaryKey);
    if (values.json) {
      terminal.print(JSON.stringify({ key: text, ...explained }, undefined, 2));
      return EXIT_OK;
    }
    const print = (line: string): void => terminal.print(toPrintableLine(line));
    print(`${JSON.stringify(text)}: ${explained.summary}`);
    for (const { name, isApplied, rule, reason } of explained.limits) {
      print(`  ${isApplied ? '✓' : '·'} ${name}: ${reason}`);
      if (isApplied) print(`      ${JSON.stringify(rule)}`);
    }
    return EXIT_OK;
  },
});
