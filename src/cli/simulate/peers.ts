/** `sluice simulate peers`: a fleet that shares one limit by gossip. */

import { parseDuration } from '../../core/duration.ts';
import type { PeersFigures } from '../../simulator/peers/figures.ts';
import {
  FLEET_DEFAULTS,
  type FleetOptions,
  PEER_DEFAULTS,
  simulatePeers as runFleet,
} from '../../simulator/peers/fleet.ts';
import { DEFAULT_NETWORK } from '../../simulator/peers/network.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  integerUpTo,
  parseFlagValue,
  rangeFlag,
  readArgs,
  type Terminal,
} from '../framework/command.ts';
import {
  durationFlag,
  requireNoPositionals,
  SECONDS_PATTERN,
  SEED_RANGE,
  secondsToMs,
  writeSvg,
} from './flags.ts';
import { pictureOf } from './peers-picture.ts';
import { formatTables } from './peers-table.ts';

const MAX_NODES = 1000;
const MAX_CLIENTS = 100_000;
const MAX_AMOUNT = 1_000_000;
const MAX_LOAD = 1000;
const MAX_SPAN_MS = 3_600_000;
const MAX_WAIT_MS = 60_000;

/** More calls would take minutes. */
const MAX_CALLS = 20_000_000;

const help = `usage: sluice simulate peers [options]

Simulates a fleet of nodes that shares one rate limit by gossip, without a
central server. Each node decides locally, reports the calls it allowed, and
charges the calls that other nodes report. The production code runs on virtual
time, in a network with delay, loss, duplicates and partitions. An oracle, one
token bucket that sees every call, decides the same calls for comparison.

Results:

  worst        the fullest window of that length, relative to burst + rate x
               window, the most that one bucket allows
  overshoot    per window: calls above that, in percent of rate x window; in
               total: calls above burst + rate x span, in the worst of all
               spans, and the bound. Above the bound the exit code is 1
  utilisation  allowed calls, in percent of those that the oracle allows
  errors       calls that the oracle decides differently
  fairness     Jain's index: 1 is even, 1/n is all calls to one of n
  view age     time from a call until another node has counted it
  traffic      what one node sends; a broadcast counts once
  convergence  time after each event until all windows are within 5 % of the
               rate

Load:

  --nodes N         number of nodes (default ${FLEET_DEFAULTS.nodes}, at most ${MAX_NODES})
  --rate N          limit of each client in calls per second (default ${FLEET_DEFAULTS.rate})
  --burst N         burst of each client (default ${FLEET_DEFAULTS.burst})
  --load X          demand as a multiple of the rate (default ${FLEET_DEFAULTS.load})
  --load-step X@A   demand from second A on, as a multiple of the rate
  --clients N       number of clients, each with its own limit (default 1)
  --skew X          0: calls are spread evenly over the nodes; 1: half of them
                    reach the first, half of the rest the next, ... (default 0)
  --span TIME       simulated time (default 60s, at most 1h)
  --seed N          seed of the random numbers (default 1)

Gossip:

  --exchange MODE   periodic: report every interval; eager: also as soon as a
                    key has --flush-threshold unreported hits (default eager)
  --interval TIME   report interval (default ${PEER_DEFAULTS.intervalMs}ms)
  --flush-threshold N
                    hits of a key that cause an early report (default ${PEER_DEFAULTS.flushThreshold})
  --max-reports N   at most so many early datagrams per second; beyond that
                    reports are batched (default ${PEER_DEFAULTS.maxReports})

Network and failures:

  --delay TIME      one-way delay of a datagram (default ${DEFAULT_NETWORK.delayMs}ms)
  --jitter TIME     up to so much more delay; datagrams may be reordered
  --loss X          fraction of lost datagrams, up to 0.9 (default 0)
  --duplicates X    fraction of duplicated datagrams (default 0)
  --split A-B[:N]   network partition from second A to B: the first N nodes
                    (default half) on one side, the rest on the other
  --crash N@A-B     node N (the first is 0) crashes at second A and restarts
                    at B
  --clock-step N@A:TIME
                    at second A the clock of node N jumps ahead by TIME; if
                    TIME is negative, it stands still for so long

Output:

  --svg FILE        also draw the allowed rate over time
  --json            all figures as one line of JSON

examples:
  sluice simulate peers
  sluice simulate peers --nodes 32 --loss 0.1
  sluice simulate peers --exchange periodic --interval 1s --svg oscillation.svg
  sluice simulate peers --split 20-30:4 --crash 2@40-45`;

export const simulatePeers: Command = {
  name: 'peers',
  summary: 'a fleet that shares one limit by gossip, without a server',
  help,

  run(args, terminal) {
    const flags = readFlags(args);
    const fleet = readFleetOptions(flags);
    const figures = runWithProgress(fleet, terminal);
    if (flags.json) terminal.print(JSON.stringify(figures));
    else for (const line of formatTables(fleet, figures)) terminal.print(line);
    writeSvg(flags.svg, () => pictureOf(fleet, figures), terminal);
    return figures.overshootCalls <= figures.bound ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

/** Shows the progress while it runs, and clears it at the end. */
function runWithProgress(fleet: FleetOptions, { progress }: Terminal): PeersFigures {
  const nodes = `${fleet.nodes} ${fleet.nodes === 1 ? 'node' : 'nodes'}`;
  progress?.(`${nodes} join ...`);
  try {
    let last = -1;
    return runFleet(fleet, (fraction) => {
      const percent = Math.floor(fraction * 100);
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
  const defaults = FLEET_DEFAULTS;
  const nodes = rangeFlag('nodes', flags.nodes, defaults.nodes, integerUpTo(MAX_NODES));
  const spanMs = durationFlag('span', flags.span, defaults.spanMs, {
    min: 1000,
    max: MAX_SPAN_MS,
  });
  const delay = (name: 'delay' | 'jitter', fallback: number): number =>
    durationFlag(name, flags[name], fallback, { min: 0, max: MAX_WAIT_MS });
  const loadStep = readLoadStep(flags['load-step'], spanMs);
  const split = readSplit(flags.split, nodes, spanMs);
  const crash = readCrash(flags.crash, nodes, spanMs);
  const clockStep = readClockStep(flags['clock-step'], nodes, spanMs);
  const fleet: FleetOptions = {
    nodes,
    rate: rangeFlag('rate', flags.rate, defaults.rate, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag('burst', flags.burst, defaults.burst, { min: 1, max: MAX_AMOUNT }),
    load: rangeFlag('load', flags.load, defaults.load, { min: 0.001, max: MAX_LOAD }),
    clients: rangeFlag('clients', flags.clients, defaults.clients, integerUpTo(MAX_CLIENTS)),
    skew: rangeFlag('skew', flags.skew, defaults.skew, { min: 0, max: 1 }),
    spanMs,
    seed: rangeFlag('seed', flags.seed, defaults.seed, SEED_RANGE),
    peers: {
      exchange: readExchange(flags.exchange),
      intervalMs: durationFlag('interval', flags.interval, PEER_DEFAULTS.intervalMs, {
        min: 1,
        max: MAX_WAIT_MS,
      }),
      flushThreshold: rangeFlag(
        'flush-threshold',
        flags['flush-threshold'],
        PEER_DEFAULTS.flushThreshold,
        integerUpTo(MAX_AMOUNT),
      ),
      maxReports: rangeFlag(
        'max-reports',
        flags['max-reports'],
        PEER_DEFAULTS.maxReports,
        integerUpTo(10_000),
      ),
    },
    network: {
      delayMs: delay('delay', DEFAULT_NETWORK.delayMs),
      jitterMs: delay('jitter', DEFAULT_NETWORK.jitterMs),
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
  const maxLoad = Math.max(load, loadStep?.load ?? 0);
  const calls = (rate * maxLoad * clients * spanMs) / 1000;
  if (calls <= MAX_CALLS) return;
  throw new CommandError(
    `expected at most ${MAX_CALLS} calls, got ${Math.round(calls)} (rate x load x clients x span); reduce one of them`,
  );
}

function readExchange(word: string | undefined): 'periodic' | 'eager' {
  if (word === undefined) return PEER_DEFAULTS.exchange;
  if (word === 'periodic' || word === 'eager') return word;
  throw new CommandError(`expected \`--exchange\` to be periodic or eager, got "${word}"`);
}

function readLoadStep(text: string | undefined, spanMs: number) {
  if (text === undefined) return undefined;
  const [, load, at] = new RegExp(`^(\\d+(?:\\.\\d+)?)@${SECONDS_PATTERN}$`).exec(text) ?? [];
  const step = { atMs: secondsToMs(at), load: Number(load) };
  if (step.load > 0 && step.load <= MAX_LOAD && step.atMs <= spanMs) return step;
  throw new CommandError(
    `expected \`--load-step\` to be a multiple of the rate up to ${MAX_LOAD} and a second up to ${spanMs / 1000}, such as 10@20, got "${text}"`,
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
  throw new CommandError(
    `expected \`--split\` to be two seconds from 0 to ${spanMs / 1000} and how many of the ${nodes} nodes are on one side, such as 20-30:4, got "${text}"`,
  );
}

function readCrash(text: string | undefined, nodes: number, spanMs: number) {
  if (text === undefined) return undefined;
  const [, node, from, to] =
    new RegExp(`^(\\d+)@${SECONDS_PATTERN}-${SECONDS_PATTERN}$`).exec(text) ?? [];
  const crash = { node: Number(node), atMs: secondsToMs(from), backMs: secondsToMs(to) };
  if (crash.node < nodes && crash.atMs < crash.backMs && crash.backMs <= spanMs) return crash;
  throw new CommandError(
    `expected \`--crash\` to be a node from 0 to ${nodes - 1} and two seconds from 0 to ${spanMs / 1000}, such as 0@20-25, got "${text}"`,
  );
}

function readClockStep(text: string | undefined, nodes: number, spanMs: number) {
  if (text === undefined) return undefined;
  const [, node, at, sign, by] =
    new RegExp(`^(\\d+)@${SECONDS_PATTERN}:([+-]?)(.+)$`).exec(text) ?? [];
  const ms = parseDuration(by && parseFlagValue(by));
  const step = {
    node: Number(node),
    atMs: secondsToMs(at),
    byMs: (sign === '-' ? -1 : 1) * (ms ?? 0),
  };
  const isWithin = step.node < nodes && step.atMs <= spanMs;
  if (isWithin && ms !== undefined && ms <= MAX_WAIT_MS) return step;
  throw new CommandError(
    `expected \`--clock-step\` to be a node from 0 to ${nodes - 1}, a second up to ${spanMs / 1000} and a time up to 60s, such as 0@20:1.5s or 0@20:-1.5s, got "${text}"`,
  );
}

/** The command that runs this fleet again, without flags that have their default. */
export function commandLineOf(fleet: FleetOptions): string {
  const { peers, loadStep, crash, clockStep } = fleet;
  const { split, delayMs, jitterMs, loss, duplicates } = { ...DEFAULT_NETWORK, ...fleet.network };
  const defaults = FLEET_DEFAULTS;
  const { exchange, intervalMs, flushThreshold, maxReports } = { ...PEER_DEFAULTS, ...peers };
  const flags: readonly (readonly [name: string, value: unknown, defaultValue: unknown])[] = [
    ['nodes', fleet.nodes, defaults.nodes],
    ['rate', fleet.rate, defaults.rate],
    ['burst', fleet.burst, defaults.burst],
    ['load', fleet.load, defaults.load],
    ['load-step', loadStep && `${loadStep.load}@${loadStep.atMs / 1000}`, undefined],
    ['clients', fleet.clients, defaults.clients],
    ['skew', fleet.skew, defaults.skew],
    ['span', `${fleet.spanMs}ms`, `${defaults.spanMs}ms`],
    ['exchange', exchange, PEER_DEFAULTS.exchange],
    ['interval', `${intervalMs}ms`, `${PEER_DEFAULTS.intervalMs}ms`],
    ['flush-threshold', flushThreshold, PEER_DEFAULTS.flushThreshold],
    ['max-reports', maxReports, PEER_DEFAULTS.maxReports],
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
    ['seed', fleet.seed, defaults.seed],
  ];
  const given = flags.filter(([, value, defaultValue]) => value !== defaultValue);
  return ['sluice simulate peers', ...given.map(([name, value]) => `--${name} ${value}`)].join(' ');
}
