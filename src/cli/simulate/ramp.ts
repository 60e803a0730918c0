import { MAX_AMOUNT, OptionReader } from '../../core/options.ts';
import {
  RAMP_MODES,
  type RampMode,
  type RampOptions,
  type RampSecond,
  simulateRamp as runRamp,
} from '../../simulator/ramp.ts';
import { type Axis, type Chart, type Point, roundAxisEnd } from '../chart/chart.ts';
import { roundTo } from '../chart/format.ts';
import type { Picture } from '../chart/svg.ts';
import { alignColumns } from '../chart/table.ts';
import { drawChart, drawStack, horizontalBar } from '../chart/terminal.ts';
import {
  type Command,
  CommandError,
  EXIT_OK,
  integerUpTo,
  LIST,
  rangeFlag,
  readFlags,
  SWITCH,
  TEXT,
  type Terminal,
} from '../framework/command.ts';
import { durationFlag, readForm, writeSvg } from './flags.ts';

/** Fits on one screen, and gives a different result in every mode. */
const DEFAULT_LOAD = '120x4,0x4,30x6,120x8,0x4,120x4';

/** Calls per second, times a number of seconds: 120x4. */
const LOAD_SEGMENT = /^\s*(\d+)(?:x(\d+))?\s*$/;

const DEFAULT_SECONDS = 30;
const MAX_SECONDS = 3600;
const MAX_CALLS = 9_999_999;
const MAX_POOL_SIZE = 1000;

const MODE_DESCRIPTIONS: Readonly<Record<RampMode, string>> = {
  scheduled: 'grows with time, with or without calls',
  relaxed: 'grows in every second with a call, used up or not',
  'only-if-used': 'grows after a second that used it up, otherwise stays',
  'go-back-n': 'grows when used up, shrinks when not used up or without calls',
};

const help = `usage: sluice simulate ramp [--mode MODE] [options]

Simulates a ramp: a rate limit whose tokens per second, the pool, grow from
--min to --max. The mode decides when the pool grows:

${RAMP_MODES.map((mode) => `  ${mode.padEnd(13)} ${MODE_DESCRIPTIONS[mode]}`).join('\n')}

Without --mode draws all four modes on the same traffic. With --mode prints a
table of that mode: requested calls, tokens in the pool and tokens used in each
second. In a second without calls, the pool is what a call would have found.

  --mode MODE      one of the four
  --min N          tokens per second at the start (default 10)
  --max N          tokens per second at the end of the ramp (default 110)
  --over TIME      shortest ramp-up time (default 10s)
  --threshold N    percentage of a pool that counts as used up (default 100)
  --cool-down TIME go-back-n: no decrease during so long a pause (default none)
  --ramp-down N    go-back-n: slope of the decrease, in percent of the increase
                   (default 100)
  --load LIST      requested calls in each second: 80 is 80 in every second,
                   120x4,0x2 is 120 in each of four seconds, then two seconds
                   without calls; the list repeats
                   (default ${DEFAULT_LOAD})
  --gap A-B        no calls from second A to B; repeatable
  --seconds N      simulated seconds (default ${DEFAULT_SECONDS}, or once LIST if longer)
  --pool-size N    number of processes that share the pool and the calls
                   (default 1)
  --svg FILE       also draw the result
  --json           one line of JSON per second: {mode, second, requested, pool,
                   used, remaining}

examples:
  sluice simulate ramp
  sluice simulate ramp --mode go-back-n --load 120 --gap 8-12 --cool-down 3s`;

interface ModeRun {
  readonly mode: RampMode;
  readonly seconds: readonly RampSecond[];
}

export const simulateRamp: Command = {
  help,

  run(args, terminal) {
    const flags = readFlags(args, FLAGS);
    const requested = readDemand(flags);
    const modes = readModes(flags.mode);
    const size = rangeFlag(flags, 'pool-size', 1, integerUpTo(MAX_POOL_SIZE));
    const options = readOptions(flags);
    const runs = modes.map((mode) => ({
      mode,
      seconds: runRamp({ ...options, mode }, requested, size),
    }));

    writeSvg(flags.svg, () => svgPicture(runs), terminal);
    for (const line of linesOf(runs, flags.json ?? false, terminal)) terminal.print(line);
    return EXIT_OK;
  },
};

function linesOf(runs: readonly ModeRun[], json: boolean, terminal: Terminal): string[] {
  if (json) return runs.flatMap(jsonLines);
  const [first, ...others] = runs;
  return others.length === 0 ? secondsTable(first, terminal) : overviewCharts(runs, terminal);
}

const FLAGS = {
  mode: TEXT,
  min: TEXT,
  max: TEXT,
  over: TEXT,
  threshold: TEXT,
  'cool-down': TEXT,
  'ramp-down': TEXT,
  load: TEXT,
  gap: LIST,
  seconds: TEXT,
  'pool-size': TEXT,
  svg: TEXT,
  json: SWITCH,
};

type Flags = ReturnType<typeof readFlags<typeof FLAGS>>;

function readModes(word: string | undefined): readonly RampMode[] {
  if (word === undefined) return RAMP_MODES;
  return [new OptionReader('', { '--mode': word }).oneOf('--mode', RAMP_MODES)];
}

function readOptions(flags: Flags): RampOptions {
  const coolDown = durationFlag(flags, 'cool-down', 0, DURATION_RANGE);
  const max = rangeFlag(flags, 'max', 110, { above: 0, max: MAX_AMOUNT });
  return {
    max,
    min: rangeFlag(flags, 'min', 10, { above: 0, max }),
    over: durationFlag(flags, 'over', 10_000, DURATION_RANGE),
    threshold: rangeFlag(flags, 'threshold', 100, PERCENT_RANGE),
    rampDown: rangeFlag(flags, 'ramp-down', 100, PERCENT_RANGE),
    ...(coolDown > 0 && { coolDown }),
  };
}

const PERCENT_RANGE = { min: 0, max: 100 };
const DURATION_RANGE = { min: 1, max: 86_400_000 };

/** Requested calls of every second, 0 in gaps. */
function readDemand(flags: Flags): number[] {
  const load = readLoad(flags.load ?? DEFAULT_LOAD);
  const defaultCount = Math.max(DEFAULT_SECONDS, load.length);
  const count = rangeFlag(flags, 'seconds', defaultCount, integerUpTo(MAX_SECONDS));
  const requested = Array.from({ length: count }, (_, n) => load[n % load.length]);
  for (const gap of flags.gap ?? []) {
    const [from, to] = readGap(gap, count);
    requested.fill(0, from - 1, to);
  }
  return requested;
}

function readLoad(list: string): number[] {
  const loadError = (expected: string) =>
    new CommandError(`expected \`--load\` to ${expected}, got "${list}"`);
  const load: number[] = [];
  for (const part of list.split(',')) {
    const [, calls, seconds = '1'] = LOAD_SEGMENT.exec(part) ?? [];
    if (calls === undefined) throw loadError('be a list such as 120x4,0x2,80');
    if (Number(calls) > MAX_CALLS) throw loadError(`be at most ${MAX_CALLS} calls per second`);
    const length = load.length + Number(seconds);
    if (length > MAX_SECONDS) throw loadError(`last at most ${MAX_SECONDS} seconds`);
    while (load.length < length) load.push(Number(calls));
  }
  if (load.length === 0) throw loadError('last at least one second');
  return load;
}

const readGap = (text: string, maxSeconds: number): [from: number, to: number] =>
  readForm(text, {
    name: 'gap',
    pattern: '\\s*(\\d+)(?:-(\\d+))?\\s*',
    expected: `two of the seconds 1 to ${maxSeconds}, such as 8-12`,
    read(first, last = first) {
      const [from, to] = [Number(first), Number(last)];
      return from >= 1 && to >= from && to <= maxSeconds && [from, to];
    },
  });

const jsonLines = ({ mode, seconds }: ModeRun): string[] =>
  seconds.map((second) => JSON.stringify({ mode, ...second }));

/** Low enough that all four modes fit on a screen. */
const OVERVIEW_ROWS = 6;
const DEMAND_ROWS = 2;

function overviewCharts(runs: readonly ModeRun[], { columns }: Terminal): string[] {
  const [{ seconds }] = runs;
  const demand = drawChart(demandChart(seconds, 's'), { columns, rows: DEMAND_ROWS });
  const modes = drawStack(modeCharts(runs, 's'), { columns, rows: OVERVIEW_ROWS });
  return [...demand, '', ...modes];
}

function demandChart(seconds: readonly RampSecond[], xLabel: string): Chart {
  return {
    title: 'demand',
    x: timeAxis(seconds, xLabel),
    y: { label: 'calls/s', from: 0, to: roundAxisEnd(seconds.map(({ requested }) => requested)) },
    series: [
      {
        name: 'requested',
        style: 'bars',
        points: pointsOf(seconds, ({ requested }) => requested),
      },
    ],
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

function svgPicture(runs: readonly ModeRun[]): Picture {
  const [{ seconds }] = runs;
  const charts = [demandChart(seconds, 'second'), ...modeCharts(runs, 'second')];
  return { title: 'Ramp: requested calls, tokens in the pool, tokens used', charts };
}

const timeAxis = (seconds: readonly RampSecond[], label: string): Axis => ({
  label,
  from: 1,
  to: seconds.length + 1,
});

const pointsOf = (seconds: readonly RampSecond[], figure: (second: RampSecond) => number) =>
  seconds.map((second): Point => [second.second, figure(second)]);

const HEADINGS = ['second', 'requested', 'pool', 'used', 'use'];
const BAR_COLUMNS_MIN = 10;

function secondsTable({ mode, seconds }: ModeRun, { columns }: Terminal): string[] {
  const [head, ...rows] = alignColumns([HEADINGS, ...seconds.map(tableRow)], '   ');
  const barColumns = Math.max(BAR_COLUMNS_MIN, columns - head.length - 2);
  const maxPool = seconds.reduce((max, { pool }) => Math.max(max, pool), 0);
  const bars = seconds.map(({ used, pool }) => horizontalBar(used, pool, maxPool, barColumns));
  return [
    `${mode}: ${MODE_DESCRIPTIONS[mode]}`,
    '',
    `${head}  █ used  ░ unused`,
    ...rows.map((row, n) => `${row}  ${bars[n]}`),
  ];
}

/** Rounding error of a sum of fractions, in percent. */
const EPSILON = 1e-9;

/** A second without calls has no use of its pool, instead of 0 %. */
function tableRow({ second, requested, pool, used, remaining }: RampSecond): string[] {
  const tokens = `${roundTo(pool, 2)}`;
  if (requested === 0) return [`${second}`, '-', tokens, '-', '-'];
  const use = Math.floor(((pool - remaining) * 100) / pool + EPSILON);
  return [`${second}`, `${requested}`, tokens, `${used}`, `${use} %`];
}
