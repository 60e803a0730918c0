import { OptionReader } from '../../core/options.ts';
import {
  flowAt,
  formatOutcome,
  formatRun,
  HEALTHY_AT,
  MAX_CALLS,
  PATTERNS,
  type Recovery,
  simulateTchannel as runTchannel,
  type SimulatedSecond,
  type TchannelRun,
  TRAFFIC_SHAPES,
  type Traffic,
  type TrafficShape,
} from '../../simulator/tchannel.ts';
import { MAX_LIVE_CALLS, simulateTchannelLive } from '../../simulator/tchannel-live.ts';
import {
  type Axis,
  type Chart,
  type Phase,
  type Point,
  roundAxisEnd,
  type Series,
} from '../chart/chart.ts';
import type { Picture } from '../chart/svg.ts';
import { drawStack } from '../chart/terminal.ts';
import {
  type Command,
  CommandError,
  EXIT_OK,
  type FlagValues,
  numberFlag,
  rangeFlag,
  readArgs,
  SWITCH,
  TEXT,
} from '../framework/command.ts';
import { durationFlag, writeSvg } from './flags.ts';

const RECOVER_RATE = 3;
const RECOVER_VALUE = 200;

const LIVE_RTT_MS = 50;
const RTT_RANGE = { min: 1, max: 10_000 };

/** Two charts with titles and axes fit on a screen. */
const CHART_ROWS = 10;

const help = `usage: sluice simulate tchannel [PATTERN] [options]

Simulates the busy limit: back-pressure on the client side. Each busy reply of
the service halves the client's rate limit, at most 20 times per second. Every
second the limit grows again. The service is busy for nine seconds. How long
does it take until no call is throttled?

Runs two kinds of recovery: by a factor (recover rate 3: the limit grows by
three times itself per second) and by a constant (recover value 200: by 200
calls per second). A run that still throttles at time 30 failed to converge.

PATTERN sets the demand and the number of busy replies, in calls per second at
time t:

                     demand          busy
  steady             5000            3000                    the default
  flappy             5000            3000 every third second
  linear_grow        100 + 100 t     100 t
  linear_decrease    5000 - 100 t    3000

  --rps N            demand at the start (default 5000; linear_grow 100)
  --busy N           busy replies at the start (default 3000; linear_grow 0)
  --recover-rate N   growth of the first run, times the limit (default ${RECOVER_RATE})
  --recover-value N  growth of the second run, in calls per second (default ${RECOVER_VALUE})
  --live             run the production policy, not TChannel's model: calls
                     are spread over each second, replies come one by one
  --rtt TIME         round trip of a call with --live (default 50ms)
  --chart            draw charts instead of printing rows
  --svg FILE         also draw both runs as SVG
  --log              logarithmic axis for --chart and --svg

In a row, rps is what was sent and limit is what applied to these calls;
fractions are truncated. With --live the limit changes within a second: it is
that of the first call.

examples:
  sluice simulate tchannel steady --chart
  sluice simulate tchannel flappy --recover-value 500 --chart --log
  sluice simulate tchannel steady --live --rtt 400ms --chart --log`;

export const simulateTchannel: Command = {
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      rps: TEXT,
      busy: TEXT,
      'recover-rate': TEXT,
      'recover-value': TEXT,
      live: SWITCH,
      rtt: TEXT,
      chart: SWITCH,
      svg: TEXT,
      log: SWITCH,
    });
    const pattern = readPattern(positionals);
    const { live: isLive = false } = values;
    if (values.rtt !== undefined && !isLive) {
      throw new CommandError('expected --live beside --rtt, got --rtt alone');
    }
    const traffic = readTraffic(pattern, values, isLive ? MAX_LIVE_CALLS : MAX_CALLS);
    const rttMs = durationFlag(values, 'rtt', LIVE_RTT_MS, RTT_RANGE);
    const runs = readRecoveries(values).map((recovery) =>
      isLive ? simulateTchannelLive(traffic, recovery, rttMs) : runTchannel(traffic, recovery),
    );

    const scale = values.log ? 'log' : 'linear';
    if (values.log && !values.chart && values.svg === undefined) {
      throw new CommandError('expected --chart or --svg FILE beside --log, got neither');
    }
    writeSvg(
      values.svg,
      () => svgPicture(pattern, runs, scale, isLive ? rttMs : undefined),
      terminal,
    );
    const lines = values.chart
      ? drawStack(terminalCharts(runs, scale), { columns: terminal.columns, rows: CHART_ROWS })
      : runs.flatMap(formatRun);
    for (const line of lines) terminal.print(line);
    return EXIT_OK;
  },
};

function readPattern([word = 'steady', ...others]: readonly string[]): TrafficShape {
  const pattern = TRAFFIC_SHAPES.find((shape) => shape === word);
  if (pattern === undefined) {
    throw new CommandError(
      `expected PATTERN to be one of ${TRAFFIC_SHAPES.join(', ')}, got "${word}"`,
    );
  }
  if (others.length > 0) throw new CommandError(`expected one PATTERN, got "${others[0]}" as well`);
  return pattern;
}

function readTraffic(
  pattern: TrafficShape,
  flags: FlagValues<'rps' | 'busy'>,
  max: number,
): Traffic {
  const range = { min: 0, max, integer: true };
  const { rps, busy } = PATTERNS[pattern];
  return {
    rps: { ...rps, start: rangeFlag(flags, 'rps', rps.start, range) },
    busy: { ...busy, start: rangeFlag(flags, 'busy', busy.start, range) },
  };
}

function readRecoveries(flags: FlagValues<'recover-rate' | 'recover-value'>): Recovery[] {
  const fields = new OptionReader('', {
    '--recover-rate': numberFlag(flags, 'recover-rate', RECOVER_RATE),
    '--recover-value': numberFlag(flags, 'recover-value', RECOVER_VALUE),
  });
  return [
    { recoverRate: fields.positive('--recover-rate') },
    { recoverValue: fields.positive('--recover-value') },
  ];
}

/** In a terminal each run has its own chart: light above dark is what was throttled. */
function terminalCharts(runs: readonly TchannelRun[], scale: 'linear' | 'log'): Chart[] {
  const end = lastTime(runs) + 1;
  return runs.map((run) => ({
    title: `${recoveryName(run.recovery)}: ${formatOutcome(run)}`,
    x: timeAxis(runs, 's'),
    y: callsAxis(runs, scale),
    series: [
      { name: 'demand', style: 'shade', points: pointsOf(run, end, ({ rps }) => rps) },
      { name: 'sent', style: 'bars', points: pointsOf(run, end, ({ sent }) => sent) },
    ],
    phases: phasesOf(run, end),
  }));
}

/** An SVG has colours, so both runs are in one chart. */
function svgPicture(
  pattern: TrafficShape,
  runs: readonly TchannelRun[],
  scale: 'linear' | 'log',
  rttMs: number | undefined,
): Picture {
  const longest = runs.reduce((a, b) => (lastTime([b]) > lastTime([a]) ? b : a));
  const end = lastTime(runs) + 1;
  const chart: Chart = {
    title: '',
    x: timeAxis(runs, 'time (s)'),
    y: callsAxis(runs, scale),
    series: [
      { name: 'demand', style: 'shade', points: pointsOf(longest, end, ({ rps }) => rps) },
      ...runs.map(
        (run): Series => ({
          name: `${recoveryName(run.recovery)} (${formatConvergence(run)})`,
          style: 'line',
          points: pointsOf(run, end, ({ sent }) => sent),
        }),
      ),
    ],
    phases: [
      { name: 'busy', from: 1, to: HEALTHY_AT },
      { name: 'recovering', from: recoveringFrom(runs[0]), to: end },
    ],
  };
  const live = rttMs === undefined ? '' : `, live, RTT ${rttMs} ms`;
  return {
    title: `Back-off from a busy service and recovery: ${pattern} traffic${live}`,
    charts: [chart],
  };
}

const formatConvergence = ({ convergedAt }: TchannelRun): string =>
  convergedAt === undefined ? 'failed to converge' : `converged at ${convergedAt}`;

const secondsOf = ({ busy, recovering }: TchannelRun): readonly SimulatedSecond[] => [
  ...busy,
  ...recovering,
];

const lastTime = (runs: readonly TchannelRun[]): number =>
  Math.max(HEALTHY_AT + 1, ...runs.flatMap(secondsOf).map(({ time }) => time));

const timeAxis = (runs: readonly TchannelRun[], label: string): Axis => ({
  label,
  from: 1,
  to: lastTime(runs) + 1,
});

function callsAxis(runs: readonly TchannelRun[], scale: 'linear' | 'log'): Axis {
  const most = runs.flatMap(secondsOf).map(({ rps }) => rps);
  return { label: 'calls/s', from: 0, to: roundAxisEnd(most), scale };
}

/** In TChannel's model each phase ends with its own last second: there is one second without a step between them. */
function pointsOf(
  run: TchannelRun,
  end: number,
  figure: (second: SimulatedSecond) => number,
): Point[] {
  const after = [...run.recovering, ...secondsAfterConvergence(run, end)];
  const phases = recoveringFrom(run) > HEALTHY_AT ? [run.busy, after] : [[...run.busy, ...after]];
  return phases.flatMap((seconds): Point[] => {
    const points = seconds.map((second): Point => [second.time, figure(second)]);
    const last = seconds.at(-1);
    return last ? [...points, [last.time + 1, undefined]] : points;
  });
}

/** A run ends when it has converged. The chart continues it: everything is sent. */
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
    { name: 'recovering', from: recoveringFrom({ recovering }), to: recoveredAt },
    { name: 'converged', from: recoveredAt, to: convergedAt === undefined ? recoveredAt : end },
  ];
  return phases.filter(({ from, to }) => to > from);
}

/** TChannel's model has no step at the first healthy second. */
const recoveringFrom = (run: Pick<TchannelRun, 'recovering'> | undefined): number =>
  run?.recovering[0]?.time ?? HEALTHY_AT + 1;

const recoveryName = (recovery: Recovery): string =>
  'recoverRate' in recovery
    ? `recover rate ${recovery.recoverRate}`
    : `recover value ${recovery.recoverValue}`;
