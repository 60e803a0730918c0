/** `sluice simulate tchannel`: backing off from a busy service, as TChannel's design tells it. */

import { OptionReader } from '../../core/options.ts';
import {
  flowAt,
  formatOutcome,
  formatRun,
  HEALTHY_AT,
  MAX_CALLS,
  PATTERNS,
  simulateTchannel as play,
  type Recovery,
  type SimulatedSecond,
  type TchannelRun,
  TRAFFIC_SHAPES,
  type Traffic,
  type TrafficShape,
} from '../../simulator/tchannel.ts';
import {
  type Axis,
  type Chart,
  type Phase,
  type Point,
  roundAxisEnd,
  type Series,
} from '../chart/chart.ts';
import { drawSvg } from '../chart/svg.ts';
import { drawStack } from '../chart/terminal.ts';
import {
  type Command,
  EXIT_OK,
  numberFlag,
  readArgs,
  UsageError,
  writeTextFile,
} from '../framework/command.ts';

const RECOVER_RATE = 3;
const RECOVER_VALUE = 200;

/** Two of these, with their titles and axes, fit on a screen. */
const CHART_ROWS = 10;

const help = `usage: sluice simulate tchannel [PATTERN] [options]

A client sends to a service that answers some calls with "busy". Every busy
reply halves the client's limit (20 halvings a second at most), every second
the limit grows back. After nine seconds the service is well again: how long
until nothing is throttled any more?

Two ways to grow back are run one after the other: a recover rate (3: every
second the limit grows by three times itself) and a recover value (200: every
second it grows by 200 calls a second). Whoever is not back by time 30 has
failed to converge.

PATTERN says what is wanted and how much of it is answered with busy, in calls
a second at time t:

                     wanted          busy
  steady             5000            3000                    the default
  flappy             5000            3000 every third second
  linear_grow        100 + 100 t     100 t
  linear_decrease    5000 - 100 t    3000

  --rps N            calls wanted at the start (default: 5000; linear_grow 100)
  --busy N           busy replies at the start (default: 3000; linear_grow 0)
  --recover-rate N   what the first way grows by, in times itself (default ${RECOVER_RATE})
  --recover-value N  what the second grows by, in calls a second (default ${RECOVER_VALUE})
  --chart            draw both ways instead of printing their rows
  --svg FILE         also write a picture of both to FILE
  --log              with a logarithmic axis, which shows the first few calls

In a row, rps is what was sent and limit is what these calls met; fractions
are cut off.

  sluice simulate tchannel steady --chart
  sluice simulate tchannel flappy --recover-value 500 --chart --log`;

export const simulateTchannel: Command = {
  name: 'tchannel',
  summary: 'back off from a busy service and come back in two ways',
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      rps: { type: 'string' },
      busy: { type: 'string' },
      'recover-rate': { type: 'string' },
      'recover-value': { type: 'string' },
      chart: { type: 'boolean' },
      svg: { type: 'string' },
      log: { type: 'boolean' },
    });
    const pattern = readPattern(positionals);
    const traffic = readTraffic(pattern, values);
    const stories = readRecoveries(values).map((recovery) => play(traffic, recovery));

    const scale = values.log ? 'log' : 'linear';
    if (values.log && !values.chart && values.svg === undefined) {
      throw new UsageError('expected --chart or --svg FILE beside --log, got neither');
    }
    if (values.svg !== undefined) {
      writeTextFile(values.svg, drawSvg(svgPicture(pattern, stories, scale)));
      terminal.error(`wrote ${values.svg}`); // not among the rows, which somebody may compare
    }
    const lines = values.chart
      ? drawStack(terminalCharts(stories, scale), { columns: terminal.columns, rows: CHART_ROWS })
      : stories.flatMap(formatRun);
    for (const line of lines) terminal.print(line);
    return EXIT_OK;
  },
};

function readPattern([word = 'steady', ...others]: readonly string[]): TrafficShape {
  const pattern = TRAFFIC_SHAPES.find((shape) => shape === word);
  if (pattern === undefined) {
    throw new UsageError(
      `expected PATTERN to be one of ${TRAFFIC_SHAPES.join(', ')}, got "${word}"`,
    );
  }
  if (others.length > 0) throw new UsageError(`expected one PATTERN, got "${others[0]}" as well`);
  return pattern;
}

interface FlagTexts {
  readonly rps?: string | undefined;
  readonly busy?: string | undefined;
  readonly 'recover-rate'?: string | undefined;
  readonly 'recover-value'?: string | undefined;
}

/** Calls come whole. */
const CALLS_RANGE = { min: 0, max: MAX_CALLS, integer: true };

function readTraffic(pattern: TrafficShape, texts: FlagTexts): Traffic {
  const { rps, busy } = PATTERNS[pattern];
  const fields = new OptionReader('', {
    '--rps': numberFlag('rps', texts.rps, rps.start),
    '--busy': numberFlag('busy', texts.busy, busy.start),
  });
  return {
    rps: { ...rps, start: fields.number('--rps', CALLS_RANGE) },
    busy: { ...busy, start: fields.number('--busy', CALLS_RANGE) },
  };
}

function readRecoveries(texts: FlagTexts): Recovery[] {
  const fields = new OptionReader('', {
    '--recover-rate': numberFlag('recover-rate', texts['recover-rate'], RECOVER_RATE),
    '--recover-value': numberFlag('recover-value', texts['recover-value'], RECOVER_VALUE),
  });
  return [
    { recoverRate: fields.positive('--recover-rate') },
    { recoverValue: fields.positive('--recover-value') },
  ];
}

/** In the terminal each way has its own chart: what is light above the dark was throttled. */
function terminalCharts(stories: readonly TchannelRun[], scale: 'linear' | 'log'): Chart[] {
  const end = lastTime(stories) + 1;
  return stories.map((story) => ({
    title: `${recoveryName(story.recovery)}: ${formatOutcome(story)}`,
    x: timeAxis(stories, 's'),
    y: callsAxis(stories, scale),
    series: [
      { name: 'wanted', style: 'shade', points: pointsOf(story, end, ({ rps }) => rps) },
      { name: 'sent', style: 'bars', points: pointsOf(story, end, ({ sent }) => sent) },
    ],
    phases: phasesOf(story, end),
  }));
}

/** On paper there are colours, so both ways go into one chart. */
function svgPicture(
  pattern: TrafficShape,
  stories: readonly TchannelRun[],
  scale: 'linear' | 'log',
) {
  const longest = stories.reduce((a, b) => (lastTime([b]) > lastTime([a]) ? b : a));
  const end = lastTime(stories) + 1;
  const chart: Chart = {
    title: '',
    x: timeAxis(stories, 'time, in seconds'),
    y: callsAxis(stories, scale),
    series: [
      { name: 'wanted', style: 'shade', points: pointsOf(longest, end, ({ rps }) => rps) },
      ...stories.map(
        (story): Series => ({
          name: `${recoveryName(story.recovery)} (${formatConvergence(story)})`,
          style: 'line',
          points: pointsOf(story, end, ({ sent }) => sent),
        }),
      ),
    ],
    phases: [
      { name: 'busy', from: 1, to: HEALTHY_AT },
      { name: 'recovering', from: HEALTHY_AT + 1, to: end },
    ],
  };
  return { title: `Backing off from a busy service: ${pattern} traffic`, charts: [chart] };
}

const formatConvergence = ({ convergedAt }: TchannelRun): string =>
  convergedAt === undefined ? 'failed to converge' : `converged at ${convergedAt}`;

const secondsOf = ({ busy, recovering }: TchannelRun): readonly SimulatedSecond[] => [
  ...busy,
  ...recovering,
];

const lastTime = (stories: readonly TchannelRun[]): number =>
  Math.max(HEALTHY_AT + 1, ...stories.flatMap(secondsOf).map(({ time }) => time));

const timeAxis = (stories: readonly TchannelRun[], label: string): Axis => ({
  label,
  from: 1,
  to: lastTime(stories) + 1,
});

function callsAxis(stories: readonly TchannelRun[], scale: 'linear' | 'log'): Axis {
  const most = stories.flatMap(secondsOf).map(({ rps }) => rps);
  return { label: 'calls/s', from: 0, to: roundAxisEnd(most), scale };
}

/** Each phase ends with its own last second: between them lies the one without a step. */
function pointsOf(
  story: TchannelRun,
  end: number,
  figure: (second: SimulatedSecond) => number,
): Point[] {
  return [story.busy, [...story.recovering, ...secondsAfterConvergence(story, end)]].flatMap(
    (seconds): Point[] => {
      const points = seconds.map((second): Point => [second.time, figure(second)]);
      const last = seconds.at(-1);
      return last ? [...points, [last.time + 1, undefined]] : points;
    },
  );
}

/** Whoever has converged goes on sending all that is wanted; the story just does not tell it. */
function secondsAfterConvergence(
  { traffic, convergedAt, maxLimit }: TchannelRun,
  end: number,
): SimulatedSecond[] {
  if (convergedAt === undefined) return [];
  return Array.from({ length: Math.max(0, end - convergedAt - 1) }, (_, n): SimulatedSecond => {
    const time = convergedAt + 1 + n;
    const rps = flowAt(traffic.rps, time);
    return { time, rps, sent: rps, throttled: 0, busy: 0, limit: maxLimit };
  });
}

function phasesOf({ recovering, convergedAt }: TchannelRun, end: number): Phase[] {
  const recoveredAt = (recovering.at(-1)?.time ?? HEALTHY_AT) + 1;
  const phases = [
    { name: 'busy', from: 1, to: HEALTHY_AT },
    { name: 'recovering', from: HEALTHY_AT + 1, to: recoveredAt },
    { name: 'converged', from: recoveredAt, to: convergedAt === undefined ? recoveredAt : end },
  ];
  return phases.filter(({ from, to }) => to > from);
}

const recoveryName = (recovery: Recovery): string =>
  'recoverRate' in recovery
    ? `recover rate ${recovery.recoverRate}`
    : `recover value ${recovery.recoverValue}`;
