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
import { arrange, reportLines, reportOf, type TopPage, type TopReport } from './top-report.ts';
import {
  afterKey,
  DEFAULT_VIEW,
  footOf,
  HELP_LINES,
  SORT_ORDERS,
  type SortOrder,
  stateOf,
  type TopView,
} from './top-view.ts';

const MIN_INTERVAL_MS = 100;

export const top: Command = {
  help: `usage: sluice top [options]

Shows the calls that each limit allows and denies a second, the highest use of its quota by one key,
and the keys that are denied most; by calls, the keys that are called most. On a terminal the screen is updated in place until q is pressed.
Otherwise it prints one report; with --interval, one after the other. Limits in shadow mode are
marked: their denials were allowed.

keys: d, c, a, u, n sort by denied, calls, allowed, use, name; / filters; p pauses; h shows help;
      q quits

options:
${ADMIN_FLAGS_HELP}
  --interval TIME  time between two reports; default 1s
  --sort ORDER   denied (default), calls, allowed, use or name; calls lists the hottest keys
  --filter TEXT  only limits and keys whose name contains it
  --keys N       keys of each limit; default 10
  --hour         keys of the last 1 to 2 hours; default: of the last 10 to 20 seconds
  --once         one report, after one interval
  --json         one line of JSON per report

The number after ± is the error of a count: with more than 512 keys, rare ones are estimated, and
beyond 5,000 calls a second the daemon counts a random sample of the calls.
The admin token, if the daemon has one, comes from $SLUICE_ADMIN_TOKEN.

examples:
  sluice top
  sluice top --sort calls
  sluice top --once --json | jq '.denied[0].keys'`,

  async run(args, terminal) {
    const flags = readFlags(args, {
      ...ADMIN_FLAGS,
      ...{ interval: TEXT, keys: TEXT, hour: SWITCH, once: SWITCH, json: SWITCH },
      ...{ sort: TEXT, filter: TEXT },
    });
    const intervalMs = parseInterval(flags.interval);
    const max = rangeFlag(flags, 'keys', 10, integerUpTo(100));
    const path = `/top?span=${flags.hour ? 'hour' : 'now'}&max=${max}`;
    const read = async (): Promise<TopPage> => (await fetchPage(path, flags)) as TopPage;
    const title = `sluice top, ${adminAddressOf(flags)}`;
    const view = { ...DEFAULT_VIEW, sort: parseSort(flags.sort), filter: flags.filter ?? '' };
    const first = await read(); // without a daemon, the command ends here
    if (flags.once || flags.json || !terminal.openScreen) {
      const isOnce = flags.once ?? (!terminal.openScreen && flags.interval === undefined);
      await printReports(first, read, intervalMs, isOnce, (report) => {
        const arranged = arrange(report, view);
        if (flags.json) terminal.print(JSON.stringify(arranged));
        else printReport(terminal, title, arranged, view.sort, isOnce);
      });
      return EXIT_OK;
    }
    const screen = terminal.openScreen();
    try {
      await showReports(first, read, intervalMs, title, screen, view);
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

const parseSort = (order = DEFAULT_VIEW.sort as string): SortOrder =>
  new OptionReader('', { '--sort': order }).oneOf('--sort', SORT_ORDERS);

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

function printReport(
  terminal: Terminal,
  title: string,
  report: TopReport,
  sort: SortOrder,
  isOnce: boolean,
): void {
  const head = `${title}, ${timeOf(report)}`;
  for (const { text } of reportLines(head, report, sort, terminal.columns, Infinity))
    terminal.print(text);
  if (!isOnce) terminal.print('');
}

const timeOf = ({ at }: TopReport): string => new Date(at).toISOString().slice(11, 19);

/** Shows reports until the user quits. If the daemon is gone, it is tried again at every interval. */
async function showReports(
  first: TopPage,
  read: () => Promise<TopPage>,
  intervalMs: number,
  title: string,
  screen: Screen,
  initial: TopView,
): Promise<void> {
  let before = first;
  let report = reportOf(first, first);
  let problem = '';
  let view = initial;
  let isOpen = true;
  void screen.closed.then(() => {
    isOpen = false;
  });
  const show = (): void => screen.show(screenLines(title, report, view, screen, problem));
  screen.onKey((key) => {
    const next = afterKey(view, key);
    if (next === 'quit') {
      screen.quit();
      return;
    }
    view = next;
    show();
  });
  while (isOpen) {
    show();
    await Promise.race([sleep(intervalMs), screen.closed]);
    if (!isOpen) return;
    if (view.isPaused) continue;
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

/** Title or problem, help if it is wanted, the report, and the keys in the last row. */
function screenLines(
  title: string,
  report: TopReport,
  view: TopView,
  { rows, columns }: Screen,
  problem: string,
): ScreenLine[] {
  const head = [title, `${timeOf(report)} UTC`, stateOf(view), 'q quits'].filter(Boolean);
  const help = view.hasHelp ? HELP_LINES : [];
  const height = Math.max(1, rows - help.length - 1);
  const arranged = arrange(report, view);
  const [first, ...rest] = reportLines(head.join(', '), arranged, view.sort, columns, height);
  const shown: ScreenLine[] = [
    problem ? { text: problem, style: 'problem' } : first,
    ...help.map((text) => ({ text: text.slice(0, columns) })),
    ...rest,
  ];
  while (shown.length < rows - 1) shown.push({ text: '' });
  return [...shown.slice(0, rows - 1), { text: footOf(view).slice(0, columns), style: 'heading' }];
}
