/** `sluice simulate groups`: one limit over distant regions, in three designs. */

import { MAX_AMOUNT } from '../../core/options.ts';
import { figuresOf, type RegionsFigures } from '../../simulator/groups/figures.ts';
import {
  DESIGNS,
  type Design,
  type Link,
  type Region,
  type RegionOutage,
  type RegionsOptions,
  simulateRegions,
} from '../../simulator/groups/run.ts';
import { formatPercent } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  rangeFlag,
  readArgs,
} from '../framework/command.ts';
import {
  durationFlag,
  requireNoPositionals,
  SECONDS_PATTERN,
  SEED_RANGE,
  secondsToMs,
  writeSvg,
} from './flags.ts';
import { type DesignRun, pictureOf } from './groups-picture.ts';

const DEFAULT_REGIONS = ['eu:300', 'us:30', 'ap:30'];
const MAX_REGIONS = 20;
const MAX_CALLS = 2_000_000;
const MAX_SPAN_MS = 3_600_000;
const MAX_WAIT_MS = 60_000;

const help = `usage: sluice simulate groups [options]

Simulates one rate limit (a token bucket) over distant regions. Calls arrive at
random, with a rate per region. Three designs run on the same load:

  groups   each region has a fraction of the limit and borrows what other
           regions do not need: the production code on virtual time
  even     each region has a fraction of the limit, without borrowing
  central  one bucket in the first region, which all regions query

Columns:

  utilisation  allowed calls, in percent of what the limit allows or, if that
               is less, of the demand
  overshoot    calls above burst + rate x span, in the worst of all spans. The
               bound for groups is rate x deadline; above it the exit code is 1
  latency      mean time until a call is decided
  (region)     allowed calls per second in each region

  --region NAME:LOAD[:WEIGHT[:MIN]]
                    a region: its demand in calls per second, its weight when
                    the limit is divided (default 1), its minimum fraction from
                    0 to 1 (default 0); repeatable
                    (default ${DEFAULT_REGIONS.join(', ')})
  --rate N          limit in calls per second, all regions (default 300)
  --burst N         burst, all regions (default 300)
  --rtt TIME        round-trip time between any two regions (default 80ms)
  --link A-B=TIME   round-trip time between these two; repeatable
  --jitter X        delays take up to this fraction longer (default 0.1)
  --reserve X       fraction of its burst that a region does not lend
                    (default 0.5)
  --deadline TIME   timeout of a request to another region (default 500ms)
  --cut NAME@A-B    network partition: this region is isolated from second A
                    to B; repeatable
  --span TIME       simulated time (default 60s, at most 1h)
  --seed N          seed of the random numbers (default 1)

  --svg FILE        also draw the allowed rate of each region over time
  --json            all figures as one line of JSON

examples:
  sluice simulate groups
  sluice simulate groups --cut eu@20-35 --svg split.svg
  sluice simulate groups --region eu:400 --region us:10 --region ap:10:1:0.1 --link eu-ap=250ms`;

export const simulateGroups: Command = {
  name: 'groups',
  summary: 'one limit over distant regions that borrow from each other',
  help,

  async run(args, terminal) {
    const flags = readFlags(args);
    const options = readRegionsOptions(flags);
    const runs: (DesignRun & DesignFigures)[] = [];
    for (const design of DESIGNS) {
      terminal.progress?.(`${design} ...`);
      const run = await simulateRegions(design, options);
      runs.push({ design, run, figures: figuresOf(run, options) });
    }
    terminal.progress?.('');
    if (flags.json) terminal.print(JSON.stringify(Object.fromEntries(runs.map(jsonEntryOf))));
    else for (const line of tableOf(options, runs)) terminal.print(line);
    writeSvg(flags.svg, () => pictureOf(options, runs), terminal);
    const [{ figures }] = runs;
    return figures.overshootCalls <= figures.bound ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

interface DesignFigures {
  readonly design: Design;
  readonly figures: RegionsFigures;
}

const jsonEntryOf = ({ design, figures }: DesignFigures): [Design, unknown] => [
  design,
  { ...figures, rates: Object.fromEntries(figures.rates) },
];

function tableOf(options: RegionsOptions, runs: readonly DesignFigures[]): string[] {
  const { regions, rate, burst, rttMs, spanMs } = options;
  const loads = regions.map(({ name, load }) => `${name} ${load}/s`).join(', ');
  const names = regions.map(({ name }) => name);
  const [{ figures }] = runs;
  const rows = runs.map(({ design, figures: result }) => [
    design,
    formatPercent(result.utilisation, 1),
    result.overshootCalls.toFixed(1),
    `${result.meanLatencyMs.toFixed(0)} ms`,
    ...names.map((name) => `${(result.rates.get(name) ?? 0).toFixed(1)}/s`),
  ]);
  const isHeld = figures.overshootCalls <= figures.bound;
  return [
    `${rate} calls/s, burst ${burst}, over ${regions.length} regions ${rttMs} ms apart, for ${spanMs / 1000} s`,
    `demand: ${loads}`,
    '',
    ...alignColumns([['', 'utilisation', 'overshoot', 'latency', ...names], ...rows], '  ', 1),
    '',
    `bound on the overshoot of groups: ${figures.bound.toFixed(0)} (rate x deadline)${isHeld ? '' : ': EXCEEDED'}`,
  ];
}

function readFlags(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const repeatable = { type: 'string', multiple: true } as const;
  const { values, positionals } = readArgs(args, {
    region: repeatable,
    rate: text,
    burst: text,
    rtt: text,
    link: repeatable,
    jitter: text,
    reserve: text,
    deadline: text,
    cut: repeatable,
    span: text,
    seed: text,
    svg: text,
    json: { type: 'boolean' },
  });
  requireNoPositionals(positionals);
  return values;
}

type Flags = ReturnType<typeof readFlags>;

function readRegionsOptions(flags: Flags): RegionsOptions {
  const spanMs = durationFlag('span', flags.span, 60_000, { min: 1000, max: MAX_SPAN_MS });
  const regions = (flags.region ?? DEFAULT_REGIONS).map(readRegion);
  const names = regions.map(({ name }) => name);
  if (regions.length < 2 || regions.length > MAX_REGIONS || new Set(names).size < names.length) {
    throw new CommandError(
      `expected 2 to ${MAX_REGIONS} regions with different names, got ${names}`,
    );
  }
  const fraction = { min: 0, max: 1 };
  const delay = { min: 0, max: MAX_WAIT_MS };
  const options: RegionsOptions = {
    regions,
    rate: rangeFlag('rate', flags.rate, 300, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag('burst', flags.burst, 300, { min: 1, max: MAX_AMOUNT }),
    rttMs: durationFlag('rtt', flags.rtt, 80, delay),
    links: (flags.link ?? []).map((text) => readLink(text, names)),
    jitter: rangeFlag('jitter', flags.jitter, 0.1, fraction),
    reserve: rangeFlag('reserve', flags.reserve, 0.5, fraction),
    deadlineMs: durationFlag('deadline', flags.deadline, 500, { min: 1, max: MAX_WAIT_MS }),
    outages: (flags.cut ?? []).map((text) => readCut(text, names, spanMs)),
    spanMs,
    seed: rangeFlag('seed', flags.seed, 1, SEED_RANGE),
  };
  const calls = (regions.reduce((sum, { load }) => sum + load, 0) * spanMs) / 1000;
  if (calls <= MAX_CALLS) return options;
  throw new CommandError(
    `expected at most ${MAX_CALLS} calls, got ${Math.round(calls)} (all loads x span); reduce a load or --span`,
  );
}

function readRegion(text: string): Region {
  const number = String.raw`(\d+(?:\.\d+)?)`;
  const pattern = new RegExp(`^([^:@=-]+):${number}(?::${number}(?::${number})?)?$`);
  const [, name, load, weight = '1', min = '0'] = pattern.exec(text) ?? [];
  if (name !== undefined && Number(load) <= MAX_AMOUNT && Number(min) <= 1) {
    return { name, load: Number(load), weight: Number(weight), min: Number(min) };
  }
  throw new CommandError(
    `expected \`--region\` to be NAME:LOAD[:WEIGHT[:MIN]] with calls per second and a minimum fraction from 0 to 1, such as eu:300:2:0.1, got "${text}"`,
  );
}

function readLink(text: string, names: readonly string[]): Link {
  const [, from = '', to = '', time] = /^([^=-]+)-([^=-]+)=(.+)$/.exec(text) ?? [];
  if (names.includes(from) && names.includes(to) && from !== to) {
    const rttMs = durationFlag('link', time, 0, { min: 0, max: MAX_WAIT_MS });
    return { between: [from, to], rttMs };
  }
  throw new CommandError(
    `expected \`--link\` to be two of the regions ${names.join(', ')} and a time, such as ${names[0]}-${names[1]}=150ms, got "${text}"`,
  );
}

function readCut(text: string, names: readonly string[], spanMs: number): RegionOutage {
  const [, region = '', from, to] =
    new RegExp(`^([^@]+)@${SECONDS_PATTERN}-${SECONDS_PATTERN}$`).exec(text) ?? [];
  const cut = { region, fromMs: secondsToMs(from), toMs: secondsToMs(to) };
  if (names.includes(region) && cut.fromMs < cut.toMs && cut.toMs <= spanMs) return cut;
  throw new CommandError(
    `expected \`--cut\` to be one of the regions ${names.join(', ')} and two seconds from 0 to ${spanMs / 1000}, such as ${names[0]}@20-35, got "${text}"`,
  );
}
