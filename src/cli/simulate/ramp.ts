/** `sluice simulate ramp`: what the four modes of a ramp make of the same traffic. */

import { MAX_AMOUNT, OptionReader } from '../../core/options.ts';
import {
  simulateRamp as play,
  RAMP_MODES,
  type RampMode,
  type RampOptions,
  type RampSecond,
} from '../../simulator/ramp.ts';
import { type Axis, type Chart, type Point, roundAxisEnd } from '../chart/chart.ts';
import { drawSvg } from '../chart/svg.ts';
import { alignColumns } from '../chart/table.ts';
import { drawChart, drawStack, horizontalBar } from '../chart/terminal.ts';
import {
  type Command,
  EXIT_OK,
  integerUpTo,
  rangeFlag,
  readArgs,
  type Terminal,
  UsageError,
  writeTextFile,
} from '../framework/command.ts';
import { durationFlag, requireNoPositionals } from './flags.ts';

/** Short enough to see on one screen, and no two modes make the same of it. */
const DEFAULT_LOAD = '120x4,0x4,30x6,120x8,0x4,120x4';

/** So many calls in each of so many seconds: 120x4. */
const LOAD_SEGMENT = /^\s*(\d+)(?:x(\d+))?\s*$/;

const DEFAULT_SECONDS = 30;
const MAX_SECONDS = 3600;
const MAX_CALLS = 9_999_999;
const MAX_POOL_SIZE = 1000;

const MODE_DESCRIPTIONS: Readonly<Record<RampMode, string>> = {
  scheduled: 'it grows with the clock, used or not, called or not',
  relaxed: 'it grows in every second somebody calls, used or not',
  'only-if-used': 'it grows after a second that used it up, and else stands still',
  'go-back-n': 'it grows when used up, and shrinks when not, or not called',
};

const help = `usage: sluice simulate ramp [--mode MODE] [options]

A ramp hands out tokens from a pool that is new every second and grows from
--min to --max. What makes it grow is its mode:

${RAMP_MODES.map((mode) => `  ${mode.padEnd(13)} ${MODE_DESCRIPTIONS[mode]}`).join('\n')}

Without --mode all four are drawn, one under the other, over the same traffic.
With --mode that one is told second by second: calls asked for, tokens in the
pool, tokens used. In a second in which nobody calls, the pool is the one a
caller would have found.

  --mode MODE      one of the four
  --min N          tokens a second at the start (default 10)
  --max N          tokens a second once the ramp is climbed (default 110)
  --over TIME      how long the climb takes at its fastest (default 10s)
  --threshold N    how many percent of a pool count as used up (default 100)
  --cool-down TIME go-back-n: so long a silence is not punished (default none)
  --ramp-down N    go-back-n: how steep it shrinks, in percent of the way up
                   (default 100)
  --load LIST      calls asked for in each second: 80 is 80 in every second,
                   120x4,0x2 is 120 in each of four seconds, then nobody for
                   two; a list that ends starts over
                   (default ${DEFAULT_LOAD})
  --gap A-B        nobody calls from second A to B; may be given repeatedly
  --seconds N      how long (default ${DEFAULT_SECONDS}, or once through LIST if that is longer)
  --pool-size N    so many processes share the pool and the calls (default 1)
  --svg FILE       also write a picture to FILE
  --json           one line a second, and no drawing: {mode, second, asked,
                   pool, used, remaining}

  sluice simulate ramp
  sluice simulate ramp --mode go-back-n --load 120 --gap 8-12 --cool-down 3s`;

interface ModeRun {
  readonly mode: RampMode;
  readonly seconds: readonly RampSecond[];
}

export const simulateRamp: Command = {
  name: 'ramp',
  summary: 'a pool that grows: the four modes over the same traffic',
  help,

  run(args, terminal) {
    const flags = readFlags(args);
    const asked = readDemand(flags);
    const modes = readModes(flags.mode);
    const size = rangeFlag('pool-size', flags['pool-size'], 1, integerUpTo(MAX_POOL_SIZE));
    const options = readOptions(flags);
    const runs = modes.map((mode) => ({ mode, seconds: play({ ...options, mode }, asked, size) }));

    if (flags.svg !== undefined) {
      writeTextFile(flags.svg, drawSvg(svgPicture(runs)));
      terminal.error(`wrote ${flags.svg}`); // not among the lines, which somebody may read
    }
    for (const line of linesOf(runs, flags.json ?? false, terminal)) terminal.print(line);
    return EXIT_OK;
  },
};

function linesOf(runs: readonly ModeRun[], json: boolean, terminal: Terminal): string[] {
  if (json) return runs.flatMap(jsonLines);
  const [first, ...others] = runs;
  return others.length === 0 ? secondsTable(first, terminal) : overviewCharts(runs, terminal);
}

function readFlags(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const { values, positionals } = readArgs(args, {
    mode: text,
    min: text,
    max: text,
    over: text,
    threshold: text,
    'cool-down': text,
    'ramp-down': text,
    load: text,
    gap: { type: 'string', multiple: true },
    seconds: text,
    'pool-size': text,
    svg: text,
    json: { type: 'boolean' },
  });
  requireNoPositionals(positionals);
  return values;
}

type Flags = ReturnType<typeof readFlags>;

function readModes(word: string | undefined): readonly RampMode[] {
  if (word === undefined) return RAMP_MODES;
  return [new OptionReader('', { '--mode': word }).oneOf('--mode', RAMP_MODES)];
}

function readOptions(flags: Flags): RampOptions {
  const coolDown = flags['cool-down'];
  const max = rangeFlag('max', flags.max, 110, { above: 0, max: MAX_AMOUNT });
  return {
    max,
    min: rangeFlag('min', flags.min, 10, { above: 0, max }),
    over: durationFlag('over', flags.over, 10_000, DURATION_RANGE),
    threshold: rangeFlag('threshold', flags.threshold, 100, PERCENT_RANGE),
    rampDown: rangeFlag('ramp-down', flags['ramp-down'], 100, PERCENT_RANGE),
    ...(coolDown === undefined
      ? {}
      : { coolDown: durationFlag('cool-down', coolDown, 0, DURATION_RANGE) }),
  };
}

const PERCENT_RANGE = { min: 0, max: 100 };
const DURATION_RANGE = { min: 1, max: 86_400_000 };

/** The calls of every second, gaps taken out. */
function readDemand(flags: Flags): number[] {
  const load = readLoad(flags.load ?? DEFAULT_LOAD);
  const usual = Math.max(DEFAULT_SECONDS, load.length);
  const count = rangeFlag('seconds', flags.seconds, usual, integerUpTo(MAX_SECONDS));
  const asked = Array.from({ length: count }, (_, n) => load[n % load.length]);
  for (const gap of flags.gap ?? []) {
    const [from, to] = readGap(gap, count);
    asked.fill(0, from - 1, to);
  }
  return asked;
}

function readLoad(list: string): number[] {
  const must = (expected: string) =>
    new UsageError(`expected \`--load\` to ${expected}, got "${list}"`);
  const load: number[] = [];
  for (const part of list.split(',')) {
    const [, calls, seconds = '1'] = LOAD_SEGMENT.exec(part) ?? [];
    if (calls === undefined) throw must('be a list such as 120x4,0x2,80');
    if (Number(calls) > MAX_CALLS) throw must(`be at most ${MAX_CALLS} calls a second`);
    const length = load.length + Number(seconds);
    if (length > MAX_SECONDS) throw must(`last at most ${MAX_SECONDS} seconds`);
    while (load.length < length) load.push(Number(calls));
  }
  if (load.length === 0) throw must('last at least a second');
  return load;
}

function readGap(text: string, maxSeconds: number): [from: number, to: number] {
  const [, first, last = first] = /^\s*(\d+)(?:-(\d+))?\s*$/.exec(text) ?? [];
  const [from, to] = [Number(first), Number(last)];
  if (from >= 1 && to >= from && to <= maxSeconds) return [from, to];
  throw new UsageError(
    `expected \`--gap\` to be two of the seconds 1 to ${maxSeconds}, such as 8-12, got "${text}"`,
  );
}

const jsonLines = ({ mode, seconds }: ModeRun): string[] =>
  seconds.map((second) => JSON.stringify({ mode, ...second }));

/** Low enough that all four can be seen together. */
const OVERVIEW_ROWS = 6;
const DEMAND_ROWS = 2;

function overviewCharts(runs: readonly ModeRun[], { columns }: Terminal): string[] {
  const [{ seconds }] = runs;
  const asked = drawChart(demandChart(seconds, 's'), { columns, rows: DEMAND_ROWS });
  const modes = drawStack(modeCharts(runs, 's'), { columns, rows: OVERVIEW_ROWS });
  return [...asked, '', ...modes];
}

function demandChart(seconds: readonly RampSecond[], xLabel: string): Chart {
  return {
    title: 'what is asked for',
    x: timeAxis(seconds, xLabel),
    y: { label: 'calls/s', from: 0, to: roundAxisEnd(seconds.map(({ asked }) => asked)) },
    series: [{ name: 'asked', style: 'bars', points: pointsOf(seconds, ({ asked }) => asked) }],
  };
}

function modeCharts(runs: readonly ModeRun[], xLabel: string): Chart[] {
  const top = roundAxisEnd(runs.flatMap((run) => run.seconds.map(({ pool }) => pool)));
  return runs.map(({ mode, seconds }) => ({
    title: `${mode}: ${MODE_DESCRIPTIONS[mode]}`,
    x: timeAxis(seconds, xLabel),
    y: { label: 'tokens/s', from: 0, to: top },
    series: [
      { name: 'pool', style: 'shade', points: pointsOf(seconds, ({ pool }) => pool) },
      { name: 'used', style: 'bars', points: pointsOf(seconds, ({ used }) => used) },
    ],
  }));
}

function svgPicture(runs: readonly ModeRun[]) {
  const [{ seconds }] = runs;
  const charts = [demandChart(seconds, 'second'), ...modeCharts(runs, 'second')];
  return { title: 'A ramp: calls asked for, tokens there were, tokens used', charts };
}

const timeAxis = (seconds: readonly RampSecond[], label: string): Axis => ({
  label,
  from: 1,
  to: seconds.length + 1,
});

const pointsOf = (seconds: readonly RampSecond[], figure: (second: RampSecond) => number) =>
  seconds.map((second): Point => [second.second, figure(second)]);

const HEADINGS = ['second', 'asked', 'pool', 'used', 'use'];
const BAR_COLUMNS_MIN = 10;

function secondsTable({ mode, seconds }: ModeRun, { columns }: Terminal): string[] {
  const [head, ...rows] = alignColumns([HEADINGS, ...seconds.map(tableRow)], '   ');
  const barColumns = Math.max(BAR_COLUMNS_MIN, columns - head.length - 2);
  const full = seconds.reduce((most, { pool }) => Math.max(most, pool), 0);
  const bars = seconds.map(({ used, pool }) => horizontalBar(used, pool, full, barColumns));
  return [
    `${mode}: ${MODE_DESCRIPTIONS[mode]}`,
    '',
    `${head}  █ used  ░ left over`,
    ...rows.map((row, n) => `${row}  ${bars[n]}`),
  ];
}

/** What a sum of fractions may be short of a whole percent. */
const EPSILON = 1e-9;

/** A second in which nobody called has no use of its pool, not a use of 0 %. */
function tableRow({ second, asked, pool, used, remaining }: RampSecond): string[] {
  if (asked === 0) return [`${second}`, '-', formatNumber(pool), '-', '-'];
  const use = Math.floor(((pool - remaining) * 100) / pool + EPSILON);
  return [`${second}`, `${asked}`, formatNumber(pool), `${used}`, `${use} %`];
}

const formatNumber = (value: number): string => String(Math.round(value * 100) / 100);
