import { parseDuration } from '../core/duration.ts';
import { ADMIN_FLAGS, ADMIN_FLAGS_HELP, fetchPage } from './framework/admin-client.ts';
import {
  type Command,
  CommandError,
  EXIT_OK,
  onlyPositional,
  readArgs,
  SWITCH,
  TEXT,
} from './framework/command.ts';
import { type KeyPages, whyLines } from './why-report.ts';

/** Denials that are requested from the daemon. */
const MAX_DENIALS = 1000;

export const why: Command = {
  help: `usage: sluice why KEY [--since TIME] [options]

Shows which limits apply to a key, what it has left, its recent denials with their cause, and what to
do. Nothing is counted. The daemon remembers denials in memory, since its start.

options:
  --since TIME   denials of this time; default 1h
${ADMIN_FLAGS_HELP}
  --json         all of it as JSON

The admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.

examples:
  sluice why ip:10.1.2.3
  sluice why alice --since 10m --json`,

  async run(args, terminal) {
    const { values, positionals } = readArgs(args, { ...ADMIN_FLAGS, since: TEXT, json: SWITCH });
    const key = onlyPositional(positionals, 'key');
    const { since = '1h' } = values;
    if (parseDuration(since) === undefined)
      throw new CommandError(`expected \`--since\` to be a duration such as 10m, got "${since}"`);
    const query = `key=${encodeURIComponent(key)}`;
    const denials = `/denials?${query}&since=${encodeURIComponent(since)}&max=${MAX_DENIALS}`;
    // One after the other: the first error is the one to show.
    const pages = {
      explained: await fetchPage(`/explain?${query}`, values),
      inspected: await fetchPage(`/inspect?${query}`, values),
      denied: await fetchPage(denials, values),
    } as KeyPages;
    if (values.json) terminal.print(JSON.stringify({ key, ...pages }, undefined, 2));
    else for (const line of whyLines(key, since, pages)) terminal.print(line);
    return EXIT_OK;
  },
};
