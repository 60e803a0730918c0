import type { BackendModule } from '../../daemon/backends/registry.ts';
import { alignColumns } from '../chart/table.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  readArgs,
  TEXT,
} from '../framework/command.ts';
import { loadWithEnvironment, requireConfig } from '../framework/configuration.ts';
import { decideByConfig } from './deciders.ts';
import {
  boundOf,
  maxBadOf,
  maxKeysOf,
  READ_FLAGS,
  READ_FLAGS_HELP,
  readOptions,
  topOf,
} from './flags.ts';
import { KeyTable } from './key-table.ts';
import { type PlanReport, PlanTally, planReport } from './plan-report.ts';
import { readCalls } from './read-calls.ts';
import { badLinesExit } from './replay.ts';
import {
  chartLines,
  formatCount,
  formatShare,
  keyTable,
  noteLines,
  plural,
  shortTime,
  spanLine,
} from './text-report.ts';

const help = `usage: sluice plan OLD.yaml NEW.yaml LOG... [--key KEY] [options]

Replays recorded traffic against two configurations of a daemon and shows what
the change would do: which keys flip between allow and deny, how many calls, and
when. Both decide every call by the production code, at the time of its line.

In CI, bounds make the command fail:
  --max-flips N|P%          exit code 1 if more calls flip, in either direction
  --max-newly-denied N|P%   exit code 1 if more calls are denied that were
                            allowed before; P % is of all calls

how the log is read:
${READ_FLAGS_HELP}

output:
  --json           the report as one line of JSON

The key must be the one that the daemon gets, such as --key 'ip:{ip}'. LOG is a
file, gzip or plain, or - for standard input.

Exit code 0 if all bounds hold, 1 if one does not, 2 for usage errors.

examples:
  sluice plan sluice.yaml new.yaml access.log --key 'ip:{ip}'
  sluice plan old.yaml new.yaml access.log.gz --max-newly-denied 0.1%`;

const FLAGS = { ...READ_FLAGS, 'max-flips': TEXT, 'max-newly-denied': TEXT };

export const planCommand = (modules: readonly BackendModule[]): Command => ({
  help,

  async run(args, terminal) {
    const { values: flags, positionals } = readArgs(args, FLAGS);
    const [before, after, ...logs] = positionals;
    if (logs.length === 0)
      throw new CommandError(
        'expected OLD.yaml, NEW.yaml and a LOG, or - for standard input; see --help',
      );
    const options = readOptions(flags);
    const maxBad = maxBadOf(flags);
    const top = topOf(flags);
    const bounds = (['max-flips', 'max-newly-denied'] as const).flatMap((name) => {
      const text = flags[name];
      return text === undefined ? [] : [{ name, bound: boundOf(name, text) }];
    });
    const keys = new KeyTable(maxKeysOf(flags));
    const [old, changed] = [before, after].map((file) =>
      decideByConfig(requireConfig(loadWithEnvironment(file, modules)), keys),
    );
    const tally = new PlanTally();
    const result = await readCalls(
      logs,
      options,
      keys,
      terminal,
      (at, id, cost) => tally.add(id, at, old.decide(id, at, cost), changed.decide(id, at, cost)),
      (zoneMinutes) => tally.calls.useZone(zoneMinutes),
      'plan',
    );
    const report = planReport(keys, tally, result, top);
    for (const note of noteLines(report.lines, tally.calls)) terminal.error(note);
    if (flags.json) terminal.print(JSON.stringify({ old: before, new: after, ...report }));
    else
      for (const line of planLines(before, after, report, tally, terminal.columns))
        terminal.print(line);

    const counts = { 'max-flips': report.flips, 'max-newly-denied': report.newlyDenied };
    const exceeded = bounds.filter(({ name, bound }) =>
      bound.isExceeded(counts[name], report.calls),
    );
    for (const { name, bound } of exceeded)
      terminal.error(
        `${plural(counts[name], 'call')} of ${formatCount(report.calls)}: more than --${name} ${bound.text}`,
      );
    const badExit = badLinesExit(report.lines, maxBad, terminal);
    return exceeded.length > 0 ? EXIT_CHECK_FAILED : badExit;
  },
});

function planLines(
  before: string,
  after: string,
  report: PlanReport,
  { calls }: PlanTally,
  columns: number,
): string[] {
  const { flips, newlyDenied, newlyAllowed, newlyDeniedKeys, newlyAllowedKeys } = report;
  const row = (name: string, count: number, keys: number): string[] => [
    name,
    `${formatCount(count)}, ${formatShare(count, report.calls)}`,
    plural(keys, 'key'),
  ];
  const rows = [
    row(`denied by ${before}`, report.deniedBefore, report.deniedKeysBefore),
    row(`denied by ${after}`, report.deniedAfter, report.deniedKeysAfter),
    row('newly denied', newlyDenied, newlyDeniedKeys),
    row('newly allowed', newlyAllowed, newlyAllowedKeys),
  ];
  const table = report.top.map((each) => [
    each.key,
    formatCount(each.calls),
    formatCount(each.deniedBefore),
    formatCount(each.deniedAfter),
    formatCount(each.newlyDenied),
    formatCount(each.newlyAllowed),
    shortTime(each.firstFlip),
  ]);
  const head = [
    'flipped key',
    'calls',
    'denied before',
    'denied after',
    'newly denied',
    'newly allowed',
    'first flip',
  ];
  const hidden = report.flippedKeys - report.top.length;
  return [
    spanLine(calls, report.keys),
    '',
    ...alignColumns(rows, '  ', 3).map((line) => line.trimEnd()),
    '',
    ...(flips === 0
      ? ['no call flips between allow and deny']
      : [
          ...chartLines(calls, columns, 'flips'),
          '',
          ...keyTable([head, ...table], columns),
          ...(hidden > 0 ? [`and ${plural(hidden, 'more key')}; --top shows more`] : []),
        ]),
  ];
}
