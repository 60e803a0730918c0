/** `sluice simulate peers`: a fleet that keeps one limit without a server, on virtual time. */

import { parseDuration } from '../../core/duration.ts';
import type { FleetFigures } from '../../simulator/peers/figures.ts';
import {
  FLEET_DEFAULTS,
  type FleetOptions,
  PEERS,
  simulatePeers as play,
} from '../../simulator/peers/fleet.ts';
import { DEFAULT_NETWORK } from '../../simulator/peers/network.ts';
import { drawSvg } from '../chart/svg.ts';
import {
  type Command,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  parseUnitless,
  rangeFlag,
  readArgs,
  type Terminal,
  UsageError,
  writeTextFile,
} from '../framework/command.ts';
import { durationFlag, requireNoPositionals, SECONDS_PATTERN, secondsToMs } from './flags.ts';
import { pictureOf } from './peers-picture.ts';
import { formatTables } from './peers-table.ts';

const MAX_NODES = 1000;
const MAX_CLIENTS = 100_000;
const MAX_AMOUNT = 1_000_000;
const MAX_LOAD = 1000;
const MAX_SPAN_MS = 3_600_000;
const MAX_WAIT_MS = 60_000;

/** More takes longer than anybody waits. */
const MAX_CALLS = 20_000_000;

const help = `usage: sluice simulate peers [options]

A fleet of nodes keeps one limit without a server. Each decides by its own
count, tells the others what it let through, and takes off what they tell.
Here the real engine runs on virtual time, in a network that can delay, lose,
double and split, beside an oracle: one bucket that sees all calls. Told is

  worst      the fullest window of so much time, as a part of burst + rate x
             window, which is what one bucket allows
  overshoot  what that is too much, as a part of rate x window
  excess     calls beyond burst + rate x span in the worst of all spans, and
             the bound it can never exceed; if it does, the exit code is 1
  wrong      calls decided otherwise than by the oracle
  fair       Jain's index: 1 is even, 1/n is one of n has it all
  settled    how long after each turn all windows are within 5 % of the rate
  age        from a call being served until another node has counted it
  cost       what one node sends; to everybody counts once

  --nodes N         how many (default ${FLEET_DEFAULTS.nodes}, at most ${MAX_NODES})
  --rate N          calls a second for each client (default ${FLEET_DEFAULTS.rate})
  --burst N         calls at once (default ${FLEET_DEFAULTS.burst})
  --load X          asked for, in times the rate (default ${FLEET_DEFAULTS.load})
  --load-step X@A   from second A on X times the rate is asked for
  --clients N       so many clients, each with the limit for itself (default 1)
  --skew X          0: calls come evenly to all nodes; 1: half of them to the
                    first, half of the rest to the next, ... (default 0)
  --span TIME       how long (default 60s, at most 1h)
  --seed N          another story (default 1)

  --exchange WAY    periodic: tell every interval; eager: also at once, when a
                    key has --flush-threshold hits nobody was told of (default
                    eager)
  --interval TIME   (default ${PEERS.intervalMs}ms)
  --flush-threshold N
                    (default ${PEERS.flushThreshold})
  --max-reports N   datagrams a second at most that tell early; more is told in
                    fewer, fuller ones (default ${PEERS.maxReports})

  --delay TIME      how long a datagram takes (default ${DEFAULT_NETWORK.delayMs}ms)
  --jitter TIME     and how much longer at most: they overtake each other
  --loss X          what part of them never comes, up to 0.9 (default 0)
  --duplicates X    what part of them comes twice (default 0)
  --split A-B[:N]   from second A to B the first N nodes (default half) and
                    the others do not hear each other
  --crash N@A-B     node N (the first is 0) dies at second A, is back at B
  --clock-step N@A:TIME
                    at second A the clock of node N jumps ahead by TIME; with
                    a minus it stands still for so long

  --svg FILE        also write a picture: the admitted rate over time
  --json            all figures as one line instead

  sluice simulate peers
  sluice simulate peers --nodes 32 --loss 0.1
  sluice simulate peers --exchange periodic --interval 1s --svg swing.svg
  sluice simulate peers --split 20-30:4 --crash 2@40-45`;

export const simulatePeers: Command = {
  name: 'peers',
  summary: 'a fleet that keeps one limit without a server',
  help,

  run(args, terminal) {
    const flags = readFlags(args);
    const fleet = readFleetOptions(flags);
    const figures = runWithProgress(fleet, terminal);
    if (flags.json) terminal.print(JSON.stringify(figures));
    else for (const line of formatTables(fleet, figures)) terminal.print(line);
    if (flags.svg !== undefined) {
      writeTextFile(flags.svg, drawSvg(pictureOf(fleet, figures)));
      terminal.error(`wrote ${flags.svg}`); // not among the lines, which somebody may read
    }
    return figures.overshootCalls <= figures.bound ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

/** Says how far it is while it is at it, and takes that back. */
function runWithProgress(fleet: FleetOptions, { progress }: Terminal): FleetFigures {
  const nodes = `${fleet.nodes} ${fleet.nodes === 1 ? 'node' : 'nodes'}`;
  progress?.(`${nodes} meet ...`);
  try {
    let last = -1;
    return play(fleet, (part) => {
      const percent = Math.floor(part * 100);
      if (percent > last) progress?.(`${nodes}, ${percent} % of ${fleet.spanMs / 1000} s ...`);
      last = percent;
    });
  } finally {
    progress?.('');
  }
}

function readFlags(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const { values, positionals } = readArgs(args, {
    nodes: text,
    rate: text,
    burst: text,
    load: text,
    'load-step': text,
    clients: text,
    skew: text,
    span: text,
    seed: text,
    exchange: text,
    interval: text,
    'flush-threshold': text,
    'max-reports': text,
    delay: text,
    jitter: text,
    loss: text,
    duplicates: text,
    split: text,
    crash: text,
    'clock-step': text,
    svg: text,
    json: { type: 'boolean' },
  });
  requireNoPositionals(positionals);
  return values;
}

type Flags = ReturnType<typeof readFlags>;

function readFleetOptions(flags: Flags): FleetOptions {
  const whole = (max: number, min = 1) => ({ min, max, integer: true });
  const usual = FLEET_DEFAULTS;
  const nodes = rangeFlag('nodes', flags.nodes, usual.nodes, whole(MAX_NODES));
  const spanMs = durationFlag('span', flags.span, usual.spanMs, { min: 1000, max: MAX_SPAN_MS });
  const wait = (name: 'delay' | 'jitter', fallback: number): number =>
    durationFlag(name, flags[name], fallback, { min: 0, max: MAX_WAIT_MS });
  const loadStep = readLoadStep(flags['load-step'], spanMs);
  const split = readSplit(flags.split, nodes, spanMs);
  const crash = readCrash(flags.crash, nodes, spanMs);
  const clockStep = readClockStep(flags['clock-step'], nodes, spanMs);
  const fleet: FleetOptions = {
    nodes,
    rate: rangeFlag('rate', flags.rate, usual.rate, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag('burst', flags.burst, usual.burst, { min: 1, max: MAX_AMOUNT }),
    load: rangeFlag('load', flags.load, usual.load, { min: 0.001, max: MAX_LOAD }),
    clients: rangeFlag('clients', flags.clients, usual.clients, whole(MAX_CLIENTS)),
    skew: rangeFlag('skew', flags.skew, usual.skew, { min: 0, max: 1 }),
    spanMs,
    seed: rangeFlag('seed', flags.seed, usual.seed, whole(2 ** 31, 0)),
    peers: {
      exchange: readExchange(flags.exchange),
      intervalMs: durationFlag('interval', flags.interval, PEERS.intervalMs, {
        min: 1,
        max: MAX_WAIT_MS,
      }),
      flushThreshold: rangeFlag(
        'flush-threshold',
        flags['flush-threshold'],
        PEERS.flushThreshold,
        whole(MAX_AMOUNT),
      ),
      maxReports: rangeFlag('max-reports', flags['max-reports'], PEERS.maxReports, whole(10_000)),
    },
    network: {
      delayMs: wait('delay', DEFAULT_NETWORK.delayMs),
      jitterMs: wait('jitter', DEFAULT_NETWORK.jitterMs),
      loss: rangeFlag('loss', flags.loss, 0, { min: 0, max: 0.9 }),
      duplicates: rangeFlag('duplicates', flags.duplicates, 0, { min: 0, max: 1 }),
      ...(split && { split }),
    },
    ...(loadStep && { loadStep }),
    ...(crash && { crash }),
    ...(clockStep && { clockStep }),
  };
  requireCallBudget(fleet);
  return fleet;
}

function requireCallBudget({ rate, load, loadStep, clients, spanMs }: FleetOptions): void {
  const loadMost = Math.max(load, loadStep?.load ?? 0);
  const calls = (rate * loadMost * clients * spanMs) / 1000;
  if (calls <= MAX_CALLS) return;
  throw new UsageError(
    `expected at most ${MAX_CALLS} calls, got ${Math.round(calls)}: rate x load x clients x span`,
  );
}

function readExchange(word: string | undefined): 'periodic' | 'eager' {
  if (word === undefined) return PEERS.exchange;
  if (word === 'periodic' || word === 'eager') return word;
  throw new UsageError(`expected \`--exchange\` to be periodic or eager, got "${word}"`);
}

function readLoadStep(text: string | undefined, spanMs: number) {
  if (text === undefined) return undefined;
  const [, load, at] = new RegExp(`^(\\d+(?:\\.\\d+)?)@${SECONDS_PATTERN}$`).exec(text) ?? [];
  const step = { atMs: secondsToMs(at), load: Number(load) };
  if (step.load > 0 && step.load <= MAX_LOAD && step.atMs <= spanMs) return step;
  throw new UsageError(
    `expected \`--load-step\` to be how many times the rate, up to ${MAX_LOAD}, from which of the ${spanMs / 1000} seconds on, such as 10@20, got "${text}"`,
  );
}

function readSplit(text: string | undefined, nodes: number, spanMs: number) {
  if (text === undefined) return undefined;
  const [, from, to, first] =
    new RegExp(`^${SECONDS_PATTERN}-${SECONDS_PATTERN}(?::(\\d+))?$`).exec(text) ?? [];
  const split = {
    fromMs: secondsToMs(from),
    toMs: secondsToMs(to),
    nodes: first === undefined ? Math.floor(nodes / 2) : Number(first),
  };
  const isWithin = split.fromMs < split.toMs && split.toMs <= spanMs;
  if (isWithin && split.nodes >= 1 && split.nodes < nodes) return split;
  throw new UsageError(
    `expected \`--split\` to be two seconds of the ${spanMs / 1000} there are, and how many of the ${nodes} nodes stand on one side, such as 20-30:4, got "${text}"`,
  );
}

function readCrash(text: string | undefined, nodes: number, spanMs: number) {
  if (text === undefined) return undefined;
  const [, node, from, to] =
    new RegExp(`^(\\d+)@${SECONDS_PATTERN}-${SECONDS_PATTERN}$`).exec(text) ?? [];
  const crash = { node: Number(node), atMs: secondsToMs(from), backMs: secondsToMs(to) };
  if (crash.node < nodes && crash.atMs < crash.backMs && crash.backMs <= spanMs) return crash;
  throw new UsageError(
    `expected \`--crash\` to be a node from 0 to ${nodes - 1} and two seconds of the ${spanMs / 1000} there are, such as 0@20-25, got "${text}"`,
  );
}

function readClockStep(text: string | undefined, nodes: number, spanMs: number) {
  if (text === undefined) return undefined;
  const [, node, at, sign, by] =
    new RegExp(`^(\\d+)@${SECONDS_PATTERN}:([+-]?)(.+)$`).exec(text) ?? [];
  const ms = parseDuration(by && parseUnitless(by));
  const step = {
    node: Number(node),
    atMs: secondsToMs(at),
    byMs: (sign === '-' ? -1 : 1) * (ms ?? 0),
  };
  const isWithin = step.node < nodes && step.atMs <= spanMs;
  if (isWithin && ms !== undefined && ms <= MAX_WAIT_MS) return step;
  throw new UsageError(
    `expected \`--clock-step\` to be a node from 0 to ${nodes - 1}, a second of the ${spanMs / 1000} there are and a time up to 60s, such as 0@20:1.5s or 0@20:-1.5s, got "${text}"`,
  );
}

/** The words that play this fleet again: what is as usual is left out. */
export function commandLineOf(fleet: FleetOptions): string {
  const { peers, loadStep, crash, clockStep } = fleet;
  const { split, delayMs, jitterMs, loss, duplicates } = { ...DEFAULT_NETWORK, ...fleet.network };
  const usual = FLEET_DEFAULTS;
  const { exchange, intervalMs, flushThreshold, maxReports } = { ...PEERS, ...peers };
  const words: readonly (readonly [name: string, value: unknown, usual: unknown])[] = [
    ['nodes', fleet.nodes, usual.nodes],
    ['rate', fleet.rate, usual.rate],
    ['burst', fleet.burst, usual.burst],
    ['load', fleet.load, usual.load],
    ['load-step', loadStep && `${loadStep.load}@${loadStep.atMs / 1000}`, undefined],
    ['clients', fleet.clients, usual.clients],
    ['skew', fleet.skew, usual.skew],
    ['span', `${fleet.spanMs}ms`, `${usual.spanMs}ms`],
    ['exchange', exchange, PEERS.exchange],
    ['interval', `${intervalMs}ms`, `${PEERS.intervalMs}ms`],
    ['flush-threshold', flushThreshold, PEERS.flushThreshold],
    ['max-reports', maxReports, PEERS.maxReports],
    ['delay', `${delayMs}ms`, `${DEFAULT_NETWORK.delayMs}ms`],
    ['jitter', `${jitterMs}ms`, '0ms'],
    ['loss', loss, 0],
    ['duplicates', duplicates, 0],
    ['split', split && `${split.fromMs / 1000}-${split.toMs / 1000}:${split.nodes}`, undefined],
    ['crash', crash && `${crash.node}@${crash.atMs / 1000}-${crash.backMs / 1000}`, undefined],
    [
      'clock-step',
      clockStep && `${clockStep.node}@${clockStep.atMs / 1000}:${clockStep.byMs}ms`,
      undefined,
    ],
    ['seed', fleet.seed, usual.seed],
  ];
  const told = words.filter(([, value, common]) => value !== common);
  return ['sluice simulate peers', ...told.map(([name, value]) => `--${name} ${value}`)].join(' ');
}
