/** `sluice explain`: which limits a key would meet, and why. */

import { toBinaryKey } from '../daemon/keys/binary-key.ts';
import { explainRoute } from '../daemon/router/explain.ts';
import { dryRunRegistry } from '../daemon/router/limiter-registry.ts';
import { RouteTable } from '../daemon/router/routes.ts';
import { type Command, EXIT_OK, readArgs, UsageError } from './framework/command.ts';
import { configPath, loadWithEnvironment, requireConfig } from './framework/configuration.ts';

export const explain: Command = {
  name: 'explain',
  summary: 'says which limits a key would meet, and why',
  help: `usage: sluice explain KEY [--config FILE] [--json]

Says which limits of a configuration would apply to a key, why these and not the others. No daemon
is asked: it is the configuration that is looked at, not how much is left.

options:
  --config FILE   the configuration; default $SLUICE_CONFIG, else what a daemon does without one
  --json          the same for machines

example:
  sluice explain ip:10.1.2.3 --config sluice.yaml`,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      config: { type: 'string' },
      json: { type: 'boolean' },
    });
    const [text, ...others] = positionals;
    if (text === undefined || others.length > 0) {
      throw new UsageError('expected one key; see --help');
    }
    const config = requireConfig(loadWithEnvironment(configPath(values.config)));
    const binaryKey = toBinaryKey(text);
    const route = new RouteTable(config, dryRunRegistry(config.limits)).find(binaryKey);
    const explained = explainRoute(route, config, binaryKey);
    if (values.json) {
      terminal.print(JSON.stringify({ key: text, ...explained }, undefined, 2));
      return EXIT_OK;
    }
    terminal.print(`${JSON.stringify(text)}: ${explained.summary}`);
    for (const { name, isApplied, rule, reason } of explained.limits) {
      terminal.print(`  ${isApplied ? '✓' : '·'} ${name}: ${reason}`);
      if (isApplied) terminal.print(`      ${JSON.stringify(rule)}`);
    }
    return EXIT_OK;
  },
};
