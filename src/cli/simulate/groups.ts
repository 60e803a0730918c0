import { MAX_AMOUNT } from '../../core/options.ts';
import { figuresOf } from '../../simulator/groups/figures.ts';
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
  LIST,
  rangeFlag,
  readFlags,
  SWITCH,
  TEXT,
} from '../framework/command.ts';
import { durationFlag, NUMBER, readForm, SEED_RANGE, secondsToMs, writeSvg } from './flags.ts';
import { type DesignRun, pictureOf } from './groups-picture.ts';

const DEFAULT_REGIONS = ['eu:300', 'us:30', 'ap:30'];
const MAX_REGIONS = 20;
const MAX_CALLS = 2_000_000;
const MAX_SPAN_MS = 3_600_000;
const MAX_WAIT_MS = 60_000;
const DELAY_RANGE = { min: 0, max: MAX_WAIT_MS };

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
  help,

  async run(args, terminal) {
    const flags = readFlags(args, FLAGS);
    const options = readRegionsOptions(flags);
    const runs: DesignRun[] = [];
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

const jsonEntryOf = ({ design, figures }: DesignRun): [Design, unknown] => [
  design,
  { ...figures, rates: Object.fromEntries(figures.rates) },
];

function tableOf(options: RegionsOptions, runs: readonly DesignRun[]): string[] {
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

const FLAGS = {
  region: LIST,
  rate: TEXT,
  burst: TEXT,
  rtt: TEXT,
  link: LIST,
  jitter: TEXT,
  reserve: TEXT,
  deadline: TEXT,
  cut: LIST,
  span: TEXT,
  seed: TEXT,
  svg: TEXT,
  json: SWITCH,
};

type Flags = ReturnType<typeof readFlags<typeof FLAGS>>;

function readRegionsOptions(flags: Flags): RegionsOptions {
  const spanMs = durationFlag(flags, 'span', 60_000, { min: 1000, max: MAX_SPAN_MS });
  const regions = (flags.region ?? DEFAULT_REGIONS).map(readRegion);
  const names = regions.map(({ name }) => name);
  if (regions.length < 2 || regions.length > MAX_REGIONS || new Set(names).size < names.length) {
    throw new CommandError(
      `expected 2 to ${MAX_REGIONS} regions with different names, got ${names}`,
    );
  }
  const fraction = { min: 0, max: 1 };
  const options: RegionsOptions = {
    regions,
    rate: rangeFlag(flags, 'rate', 300, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag(flags, 'burst', 300, { min: 1, max: MAX_AMOUNT }),
    rttMs: durationFlag(flags, 'rtt', 80, DELAY_RANGE),
    links: (flags.link ?? []).map((text) => readLink(text, names)),
    jitter: rangeFlag(flags, 'jitter', 0.1, fraction),
    reserve: rangeFlag(flags, 'reserve', 0.5, fraction),
    deadlineMs: durationFlag(flags, 'deadline', 500, { min: 1, max: MAX_WAIT_MS }),
    outages: (flags.cut ?? []).map((text) => readCut(text, names, spanMs)),
    spanMs,
    seed: rangeFlag(flags, 'seed', 1, SEED_RANGE),
  };
  const calls = (regions.reduce((sum, { load }) => sum + load, 0) * spanMs) / 1000;
  if (calls <= MAX_CALLS) return options;
  throw new CommandError(
    `expected at most ${MAX_CALLS} calls, got ${Math.round(calls)} (all loads x span); reduce a load or --span`,
  );
}

const readRegion = (text: string): Region =>
  readForm(text, {
    name: 'region',
    pattern: `([^:@=-]+):${NUMBER}(?::${NUMBER}(?::${NUMBER})?)?`,
    expected:
      'NAME:LOAD[:WEIGHT[:MIN]] with calls per second and a minimum fraction from 0 to 1, such as eu:300:2:0.1',
    read(name, load, weight = '1', min = '0') {
      const region = { name, load: Number(load), weight: Number(weight), min: Number(min) };
      return region.load <= MAX_AMOUNT && region.min <= 1 && region;
    },
  });

const readLink = (text: string, names: readonly string[]): Link =>
  readForm(text, {
    name: 'link',
    pattern: '([^=-]+)-([^=-]+)=(.+)',
    expected: `two of the regions ${names.join(', ')} and a time, such as ${names[0]}-${names[1]}=150ms`,
    read(from, to, link) {
      if (!names.includes(from) || !names.includes(to) || from === to) return false;
      return { between: [from, to], rttMs: durationFlag({ link }, 'link', 0, DELAY_RANGE) };
    },
  });

const readCut = (text: string, names: readonly string[], spanMs: number): RegionOutage =>
  readForm(text, {
    name: 'cut',
    pattern: `([^@]+)@${NUMBER}-${NUMBER}`,
    expected: `one of the regions ${names.join(', ')} and two seconds from 0 to ${spanMs / 1000}, such as ${names[0]}@20-35`,
    read(region, from, to) {
      const cut = { region, fromMs: secondsToMs(from), toMs: secondsToMs(to) };
      return names.includes(region) && cut.fromMs < cut.toMs && cut.toMs <= spanMs && cut;
    },
  });
