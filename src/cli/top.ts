/** `sluice top`: which limits and keys of a running daemon are throttled now, live. */

import { schedule, systemClock } from '../core/clock.ts';
import { OptionReader } from '../core/options.ts';
import {
  ADMIN_FLAGS,
  ADMIN_FLAGS_HELP,
  adminAddressOf,
  fetchPage,
} from './framework/admin-client.ts';
import {
  type Command,
  CommandError,
  EXIT_OK,
  integerUpTo,
  parseFlagValue,
  rangeFlag,
  readFlags,
  SWITCH,
  TEXT,
  type Terminal,
} from './framework/command.ts';
import type { Screen, ScreenLine } from './framework/screen.ts';
import { reportLines, reportOf, type TopPage, type TopReport } from './top-report.ts';

const MIN_INTERVAL_MS = 100;

export const top: Command = {
  help: `usage: sluice top [options]

Shows the calls that each limit allows and denies a second, and the keys that are denied most. On a
terminal the screen is updated in place until q is pressed; otherwise one report follows the other.
Limits in shadow mode are marked: their denials were allowed.

options:
${ADMIN_FLAGS_HELP}
  --interval TIME  time between two reports; default 1s
  --keys N       denied keys of each limit; default 10
  --hour         denied keys of the last 1 to 2 hours; default: of the last 10 to 20 seconds
  --once         one report, after one interval
  --json         one line of JSON per report

The number after ± is the error of a count: with more than 512 denied keys, rare ones are estimated.
The admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.

examples:
  sluice top
  sluice top --once --json | jq '.denied[0].keys'`,

  async run(args, terminal) {
    const flags = readFlags(args, {
      ...ADMIN_FLAGS,
      ...{ interval: TEXT, keys: TEXT, hour: SWITCH, once: SWITCH, json: SWITCH },
    });
    const intervalMs = parseInterval(flags.interval);
    const max = rangeFlag(flags, 'keys', 10, integerUpTo(100));
    const path = `/top?span=${flags.hour ? 'hour' : 'now'}&max=${max}`;
    const read = async (): Promise<TopPage> => (await fetchPage(path, flags)) as TopPage;
    const title = `sluice top, ${adminAddressOf(flags)}`;
    const first = await read(); // without a daemon, the command ends here
    if (flags.once || flags.json || !terminal.openScreen) {
      await printReports(first, read, intervalMs, flags.once ?? false, (report) =>
        flags.json
          ? terminal.print(JSON.stringify(report))
          : printReport(terminal, title, report, flags.once ?? false),
      );
      return EXIT_OK;
    }
    const screen = terminal.openScreen();
    try {
      await showReports(first, read, intervalMs, title, screen);
    } finally {
      screen.close();
    }
    return EXIT_OK;
  },
};

function parseInterval(text = '1s'): number {
  const flag = '--interval';
  const ms = new OptionReader('', { [flag]: parseFlagValue(text) }).duration(flag);
  if (ms >= MIN_INTERVAL_MS) return ms;
  throw new CommandError(`expected \`${flag}\` to be at least ${MIN_INTERVAL_MS}ms, got "${text}"`);
}

const sleep = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    schedule(systemClock, systemClock.now() + ms, resolve, true);
  });

/** Without a screen a daemon that is gone ends the command. */
async function printReports(
  first: TopPage,
  read: () => Promise<TopPage>,
  intervalMs: number,
  isOnce: boolean,
  print: (report: TopReport) => void,
): Promise<void> {
  for (let before = first; ; ) {
    await sleep(intervalMs);
    const page = await read();
    print(reportOf(before, page));
    if (isOnce) return;
    before = page;
  }
}

function printReport(terminal: Terminal, title: string, report: TopReport, isOnce: boolean): void {
  const head = `${title}, ${timeOf(report)}`;
  for (const { text } of reportLines(head, report, terminal.columns, Infinity))
    terminal.print(text);
  if (!isOnce) terminal.print('');
}

const timeOf = ({ at }: TopReport): string => new Date(at).toISOString().slice(11, 19);

/** Shows reports until the user quits. A daemon that is gone is asked again at every interval. */
async function showReports(
  first: TopPage,
  read: () => Promise<TopPage>,
  intervalMs: number,
  title: string,
  screen: Screen,
): Promise<void> {
  let before = first;
  let report = reportOf(first, first);
  let problem = '';
  let isOpen = true;
  void screen.closed.then(() => {
    isOpen = false;
  });
  while (isOpen) {
    const head = `${title}, ${timeOf(report)} UTC, q quits`;
    const lines: ScreenLine[] = reportLines(head, report, screen.columns, screen.rows);
    screen.show(problem ? [{ text: problem, style: 'problem' }, ...lines.slice(1)] : lines);
    await Promise.race([sleep(intervalMs), screen.closed]);
    if (!isOpen) return;
    try {
      const page = await read();
      report = reportOf(before, page);
      before = page;
      problem = '';
    } catch (error) {
      if (!(error instanceof CommandError)) throw error;
      problem = `${error.message}; asking again, q quits`;
    }
  }
}
