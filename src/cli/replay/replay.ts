import type { BackendModule } from '../../daemon/backends/registry.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  LIST,
  readArgs,
  requireDirectory,
  SWITCH,
  TEXT,
  type Terminal,
  writeTextFile,
} from '../framework/command.ts';
import { loadWithEnvironment, requireConfig } from '../framework/configuration.ts';
import { STDIN_NAME } from './chunks.ts';
import { csvLines } from './csv-report.ts';
import { type Decider, decideByConfig, decideByLimit } from './deciders.ts';
import {
  type Bound,
  maxBadOf,
  maxKeysOf,
  READ_FLAGS,
  READ_FLAGS_HELP,
  readOptions,
  topOf,
} from './flags.ts';
import { replayHtml } from './html-report.ts';
import { KeyTable } from './key-table.ts';
import { formatLimit, parseLimits } from './limit-text.ts';
import { type ReadOptions, readCalls } from './read-calls.ts';
import { type LinesReport, type ReplayReport, replayReport } from './report.ts';
import { BurstNeeds, type Suggestion } from './suggest.ts';
import { Tally } from './tally.ts';
import { noteLines, replayLines, suggestionLines } from './text-report.ts';

const help = `usage: sluice replay LOG... --limit LIMIT [--key KEY] [options]
       sluice replay LOG... --config FILE [--key KEY] [options]
       sluice replay LOG... --suggest P% [--key KEY] [options]

Shows what a limit would have done to recorded traffic: who would have been
denied, when, and how much. Every call of the log is decided by the production
code, at the time of its line. Nothing is sent anywhere.

LOG is a file, gzip or plain, or - for standard input. Several logs, such as
those of several hosts, are merged by time.

what decides, one of:
  --limit LIMIT    a limit: 'bucket 10/s burst 20', 'window 100 per 1m',
                   'spacing 100ms', or YAML as in a configuration:
                   'bucket: { rate: 10/s, burst: 20 }'; repeatable: all must
                   allow
  --config FILE    a daemon's configuration: its routes, overrides, plans, lists
                   and limits in shadow mode; the key must be the one that the
                   daemon gets, such as --key 'ip:{ip}'
  --suggest P%     finds a rate and a burst that throttle at most P % of the
                   keys, and replays them; reads the log twice

how the log is read:
${READ_FLAGS_HELP}

output:
  --html FILE      also write a report as one HTML file
  --csv            one line per denied key instead of the report
  --json           the report as one line of JSON

Exit code 1 if more lines cannot be read than --max-bad, 2 for usage errors.

examples:
  sluice replay access.log --limit 'bucket 10/s burst 20'
  sluice replay access.log.*.gz --limit 'window 1000 per 1h' --key 'user|ip'
  sluice replay app.log --config sluice.yaml --key 'user:{user.id}'
  sluice replay access.log --suggest 1% --html report.html`;

const FLAGS = {
  ...READ_FLAGS,
  limit: LIST,
  config: TEXT,
  suggest: TEXT,
  html: TEXT,
  csv: SWITCH,
};

/** The decider of the calls, with its title in the report. */
interface Chosen {
  readonly title: string;
  readonly decider: Decider;
  readonly suggestion?: { readonly found: Suggestion; readonly percent: number };
}

export const replayCommand = (modules: readonly BackendModule[]): Command => ({
  help,

  async run(args, terminal) {
    const { values: flags, positionals: logs } = readArgs(args, FLAGS);
    if (logs.length === 0)
      throw new CommandError('expected a LOG, or - for standard input; see --help');
    const given = ['limit', 'config', 'suggest'].filter((name) => name in flags);
    if (given.length !== 1)
      throw new CommandError(
        `expected one of --limit, --config and --suggest, got ${given.length === 0 ? 'none' : given.map((name) => `--${name}`).join(' and ')}; see --help`,
      );
    if (flags.csv && flags.json) throw new CommandError('expected --csv or --json, got both');
    requireDirectory(flags.html);
    const options = readOptions(flags);
    const maxKeys = maxKeysOf(flags);
    const maxBad = maxBadOf(flags);
    const top = topOf(flags, flags.csv ? maxKeys : undefined);
    const keys = new KeyTable(maxKeys);

    const chosen = await choose();
    const tally = new Tally();
    const { decider } = chosen;
    const result = await readCalls(
      logs,
      options,
      keys,
      terminal,
      (at, id, cost) => tally.add(id, at, decider.decide(id, at, cost)),
      (zoneMinutes) => tally.calls.useZone(zoneMinutes),
    );
    const report = replayReport(keys, tally, result, top, decider.limitCounts?.());
    print(chosen, report, tally);
    return badLinesExit(report.lines, maxBad, terminal);

    async function choose(): Promise<Chosen> {
      if (flags.config !== undefined) {
        const config = requireConfig(loadWithEnvironment(flags.config, modules));
        const title = `configuration ${flags.config}`;
        return { title, decider: decideByConfig(config, keys) };
      }
      if (flags.suggest !== undefined) return suggest(flags.suggest);
      const limit = parseLimits(flags.limit ?? []);
      return {
        title: formatLimit(limit),
        decider: decideByLimit(limit, keys, maxKeys),
      };
    }

    async function suggest(text: string): Promise<Chosen> {
      const percent = percentOf(text);
      if (logs.includes(STDIN_NAME))
        throw new CommandError('expected files with --suggest, which reads the log twice, got -');
      const found = await suggestLimit(logs, options, keys, percent, terminal);
      const limit = { bucket: { rate: found.rate, burst: found.burst } };
      const decider = decideByLimit(limit, keys, maxKeys);
      return { title: formatLimit(limit), decider, suggestion: { found, percent } };
    }

    function print({ title, suggestion }: Chosen, report: ReplayReport, tally: Tally): void {
      const { calls } = tally;
      const notes = noteLines(report.lines, calls);
      const origin = suggestion
        ? ` (suggested, throttles at most ${suggestion.percent} % of the keys)`
        : '';
      const heading = `${title}${origin}, key ${flags.key ?? 'ip'}`;
      if (flags.html !== undefined) {
        writeTextFile(flags.html, replayHtml(heading, logs, report, calls, notes));
        terminal.error(`wrote ${flags.html}`);
      }
      for (const note of notes) terminal.error(note);
      if (flags.csv) for (const line of csvLines(report.top)) terminal.print(line);
      else if (flags.json)
        terminal.print(
          JSON.stringify({
            limit: title,
            key: flags.key ?? 'ip',
            ...report,
            suggestion: suggestion?.found,
          }),
        );
      else {
        if (suggestion)
          for (const line of suggestionLines(suggestion.found, suggestion.percent, report))
            terminal.print(line);
        for (const line of replayLines(heading, report, calls, terminal.columns))
          terminal.print(line);
      }
    }
  },
});

async function suggestLimit(
  logs: readonly string[],
  options: ReadOptions,
  keys: KeyTable,
  percent: number,
  terminal: Terminal,
): Promise<Suggestion> {
  const needs = new BurstNeeds();
  const add = (at: number, id: number, cost: number): void => needs.add(id, at, cost);
  await readCalls(logs, options, keys, terminal, add, () => {}, 'suggest');
  const found = needs.suggest(percent / 100);
  if (found) return found;
  throw new CommandError('expected a log with calls to suggest a limit from, got none');
}

function percentOf(text: string): number {
  const [, digits] = /^(\d+(?:\.\d+)?)\s*%?$/.exec(text.trim()) ?? [];
  const percent = Number(digits ?? Number.NaN);
  if (percent >= 0 && percent < 100) return percent;
  throw new CommandError(
    `expected \`--suggest\` to be a percentage of the keys below 100, such as 1%, got "${text}"`,
  );
}

/** Exit code 1 if too many lines could not be read. */
export function badLinesExit(
  { bad, read }: LinesReport,
  maxBad: Bound,
  terminal: Terminal,
): number {
  if (!maxBad.isExceeded(bad, read)) return EXIT_OK;
  terminal.error(`${bad} of ${read} lines cannot be read, more than --max-bad ${maxBad.text}`);
  return EXIT_CHECK_FAILED;
}
