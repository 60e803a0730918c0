/** `sluice simulate tchannel`: backing off from a busy service, as TChannel's design tells it. */

import { Fields } from '../../core/options.ts';
import {
  CALLS_MAX,
  ending,
  flowAt,
  HEALTHY_AT,
  PATTERNS,
  simulateTchannel as play,
  type Recovery,
  type Second,
  SHAPES,
  type Shape,
  type Story,
  type Traffic,
  tell,
} from '../../simulator/tchannel.ts';
import {
  type Axis,
  type Chart,
  type Phase,
  type Point,
  roundTop,
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
  writeText,
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
      writeText(values.svg, drawSvg(picture(pattern, stories, scale)));
      terminal.complain(`wrote ${values.svg}`); // not among the rows, which somebody may compare
    }
    const lines = values.chart
      ? drawStack(charts(stories, scale), { columns: terminal.columns, rows: CHART_ROWS })
      : stories.flatMap(tell);
    for (const line of lines) terminal.print(line);
    return EXIT_OK;
  },
};

function readPattern([word = 'steady', ...others]: readonly string[]): Shape {
  const pattern = SHAPES.find((shape) => shape === word);
  if (pattern === undefined) {
    throw new UsageError(`expected PATTERN to be one of ${SHAPES.join(', ')}, got "${word}"`);
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
const CALLS = { min: 0, max: CALLS_MAX, whole: true };

function readTraffic(pattern: Shape, texts: FlagTexts): Traffic {
  const { rps, busy } = PATTERNS[pattern];
  const fields = new Fields('', {
    '--rps': numberFlag('rps', texts.rps, rps.start),
    '--busy': numberFlag('busy', texts.busy, busy.start),
  });
  return {
    rps: { ...rps, start: fields.number('--rps', CALLS) },
    busy: { ...busy, start: fields.number('--busy', CALLS) },
  };
}

function readRecoveries(texts: FlagTexts): Recovery[] {
  const fields = new Fields('', {
    '--recover-rate': numberFlag('recover-rate', texts['recover-rate'], RECOVER_RATE),
    '--recover-value': numberFlag('recover-value', texts['recover-value'], RECOVER_VALUE),
  });
  return [
    { recoverRate: fields.positive('--recover-rate') },
    { recoverValue: fields.positive('--recover-value') },
  ];
}

/** In the terminal each way has its own chart: what is light above the dark was throttled. */
function charts(stories: readonly Story[], scale: 'linear' | 'log'): Chart[] {
  const end = lastTime(stories) + 1;
  return stories.map((story) => ({
    title: `${nameOf(story.recovery)}: ${ending(story)}`,
    x: timeAxis(stories, 's'),
    y: callsAxis(stories, scale),
    series: [
      { name: 'wanted', look: 'shade', points: pointsOf(story, end, ({ rps }) => rps) },
      { name: 'sent', look: 'bars', points: pointsOf(story, end, ({ sent }) => sent) },
    ],
    phases: phasesOf(story, end),
  }));
}

/** On paper there are colours, so both ways go into one chart. */
function picture(pattern: Shape, stories: readonly Story[], scale: 'linear' | 'log') {
  const longest = stories.reduce((a, b) => (lastTime([b]) > lastTime([a]) ? b : a));
  const end = lastTime(stories) + 1;
  const chart: Chart = {
    title: '',
    x: timeAxis(stories, 'time, in seconds'),
    y: callsAxis(stories, scale),
    series: [
      { name: 'wanted', look: 'shade', points: pointsOf(longest, end, ({ rps }) => rps) },
      ...stories.map(
        (story): Series => ({
          name: `${nameOf(story.recovery)} (${endingInShort(story)})`,
          look: 'line',
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

const endingInShort = ({ convergedAt }: Story): string =>
  convergedAt === undefined ? 'failed to converge' : `converged at ${convergedAt}`;

const secondsOf = ({ busy, recovering }: Story): readonly Second[] => [...busy, ...recovering];

const lastTime = (stories: readonly Story[]): number =>
  Math.max(HEALTHY_AT + 1, ...stories.flatMap(secondsOf).map(({ time }) => time));

const timeAxis = (stories: readonly Story[], label: string): Axis => ({
  label,
  from: 1,
  to: lastTime(stories) + 1,
});

function callsAxis(stories: readonly Story[], scale: 'linear' | 'log'): Axis {
  const most = stories.flatMap(secondsOf).map(({ rps }) => rps);
  return { label: 'calls/s', from: 0, to: roundTop(most), scale };
}

/** Each phase ends with its own last second: between them lies the one without a step. */
function pointsOf(story: Story, end: number, figure: (second: Second) => number): Point[] {
  return [story.busy, [...story.recovering, ...secondsAfter(story, end)]].flatMap(
    (seconds): Point[] => {
      const points = seconds.map((second): Point => [second.time, figure(second)]);
      const last = seconds.at(-1);
      return last ? [...points, [last.time + 1, undefined]] : points;
    },
  );
}

/** Whoever has converged goes on sending all that is wanted; the story just does not tell it. */
function secondsAfter({ traffic, convergedAt, limitMax }: Story, end: number): Second[] {
  if (convergedAt === undefined) return [];
  return Array.from({ length: Math.max(0, end - convergedAt - 1) }, (_, n): Second => {
    const time = convergedAt + 1 + n;
    const rps = flowAt(traffic.rps, time);
    return { time, rps, sent: rps, throttled: 0, busy: 0, limit: limitMax };
  });
}

function phasesOf({ recovering, convergedAt }: Story, end: number): Phase[] {
  const recoveredAt = (recovering.at(-1)?.time ?? HEALTHY_AT) + 1;
  const phases = [
    { name: 'busy', from: 1, to: HEALTHY_AT },
    { name: 'recovering', from: HEALTHY_AT + 1, to: recoveredAt },
    { name: 'converged', from: recoveredAt, to: convergedAt === undefined ? recoveredAt : end },
  ];
  return phases.filter(({ from, to }) => to > from);
}

const nameOf = (recovery: Recovery): string =>
  'recoverRate' in recovery
    ? `recover rate ${recovery.recoverRate}`
    : `recover value ${recovery.recoverValue}`;
