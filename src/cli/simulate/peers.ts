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
  countOf,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  integerUpTo,
  parseFlagValue,
  rangeFlag,
  readFlags,
  SWITCH,
  TEXT,
  type Terminal,
} from '../framework/command.ts';
import { durationFlag, NUMBER, readForm, SEED_RANGE, secondsToMs, writeSvg } from './flags.ts';
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
  help,

  run(args, terminal) {
    const flags = readFlags(args, FLAGS);
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
  const nodes = countOf(fleet.nodes, 'node');
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

const FLAGS = {
  nodes: TEXT,
  rate: TEXT,
  burst: TEXT,
  load: TEXT,
  'load-step': TEXT,
  clients: TEXT,
  skew: TEXT,
  span: TEXT,
  seed: TEXT,
  exchange: TEXT,
  interval: TEXT,
  'flush-threshold': TEXT,
  'max-reports': TEXT,
  delay: TEXT,
  jitter: TEXT,
  loss: TEXT,
  duplicates: TEXT,
  split: TEXT,
  crash: TEXT,
  'clock-step': TEXT,
  svg: TEXT,
  json: SWITCH,
};

type Flags = ReturnType<typeof readFlags<typeof FLAGS>>;

function readFleetOptions(flags: Flags): FleetOptions {
  const defaults = FLEET_DEFAULTS;
  const nodes = rangeFlag(flags, 'nodes', defaults.nodes, integerUpTo(MAX_NODES));
  const spanMs = durationFlag(flags, 'span', defaults.spanMs, { min: 1000, max: MAX_SPAN_MS });
  const delay = { min: 0, max: MAX_WAIT_MS };
  const loadStep = readLoadStep(flags['load-step'], spanMs);
  const split = readSplit(flags.split, nodes, spanMs);
  const crash = readCrash(flags.crash, nodes, spanMs);
  const clockStep = readClockStep(flags['clock-step'], nodes, spanMs);
  const { intervalMs, flushThreshold, maxReports } = PEER_DEFAULTS;
  const fleet: FleetOptions = {
    nodes,
    rate: rangeFlag(flags, 'rate', defaults.rate, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag(flags, 'burst', defaults.burst, { min: 1, max: MAX_AMOUNT }),
    load: rangeFlag(flags, 'load', defaults.load, { min: 0.001, max: MAX_LOAD }),
    clients: rangeFlag(flags, 'clients', defaults.clients, integerUpTo(MAX_CLIENTS)),
    skew: rangeFlag(flags, 'skew', defaults.skew, { min: 0, max: 1 }),
    spanMs,
    seed: rangeFlag(flags, 'seed', defaults.seed, SEED_RANGE),
    peers: {
      exchange: readExchange(flags.exchange),
      intervalMs: durationFlag(flags, 'interval', intervalMs, { min: 1, max: MAX_WAIT_MS }),
      flushThreshold: rangeFlag(flags, 'flush-threshold', flushThreshold, integerUpTo(MAX_AMOUNT)),
      maxReports: rangeFlag(flags, 'max-reports', maxReports, integerUpTo(10_000)),
    },
    network: {
      delayMs: durationFlag(flags, 'delay', DEFAULT_NETWORK.delayMs, delay),
      jitterMs: durationFlag(flags, 'jitter', DEFAULT_NETWORK.jitterMs, delay),
      loss: rangeFlag(flags, 'loss', 0, { min: 0, max: 0.9 }),
      duplicates: rangeFlag(flags, 'duplicates', 0, { min: 0, max: 1 }),
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

const readLoadStep = (text: string | undefined, spanMs: number) =>
  readForm(text, {
    name: 'load-step',
    pattern: `${NUMBER}@${NUMBER}`,
    expected: `a multiple of the rate up to ${MAX_LOAD} and a second up to ${spanMs / 1000}, such as 10@20`,
    read(times, at) {
      const step = { atMs: secondsToMs(at), load: Number(times) };
      return step.load > 0 && step.load <= MAX_LOAD && step.atMs <= spanMs && step;
    },
  });

const readSplit = (text: string | undefined, nodes: number, spanMs: number) =>
  readForm(text, {
    name: 'split',
    pattern: `${NUMBER}-${NUMBER}(?::(\\d+))?`,
    expected: `two seconds from 0 to ${spanMs / 1000} and how many of the ${nodes} nodes are on one side, such as 20-30:4`,
    read(from, to, first = `${Math.floor(nodes / 2)}`) {
      const split = { fromMs: secondsToMs(from), toMs: secondsToMs(to), nodes: Number(first) };
      const isWithin = split.fromMs < split.toMs && split.toMs <= spanMs;
      return isWithin && split.nodes >= 1 && split.nodes < nodes && split;
    },
  });

const readCrash = (text: string | undefined, nodes: number, spanMs: number) =>
  readForm(text, {
    name: 'crash',
    pattern: `(\\d+)@${NUMBER}-${NUMBER}`,
    expected: `a node from 0 to ${nodes - 1} and two seconds from 0 to ${spanMs / 1000}, such as 0@20-25`,
    read(node, from, to) {
      const crash = { node: Number(node), atMs: secondsToMs(from), backMs: secondsToMs(to) };
      return crash.node < nodes && crash.atMs < crash.backMs && crash.backMs <= spanMs && crash;
    },
  });

const readClockStep = (text: string | undefined, nodes: number, spanMs: number) =>
  readForm(text, {
    name: 'clock-step',
    pattern: `(\\d+)@${NUMBER}:([+-]?)(.+)`,
    expected: `a node from 0 to ${nodes - 1}, a second up to ${spanMs / 1000} and a time up to 60s, such as 0@20:1.5s or 0@20:-1.5s`,
    read(index, at, sign, time) {
      const [node, atMs] = [Number(index), secondsToMs(at)];
      const ms = parseDuration(parseFlagValue(time));
      if (ms === undefined || ms > MAX_WAIT_MS || node >= nodes || atMs > spanMs) return false;
      return { node, atMs, byMs: sign === '-' ? -ms : ms };
    },
  });
