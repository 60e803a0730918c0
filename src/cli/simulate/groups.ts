/** `sluice simulate groups`: a limit over regions far apart, on virtual time, kept in three ways. */

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
import { drawSvg } from '../chart/svg.ts';
import { alignColumns } from '../chart/table.ts';
import {
  type Command,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  rangeFlag,
  readArgs,
  UsageError,
  writeTextFile,
} from '../framework/command.ts';
import { durationFlag, requireNoPositionals, SECONDS_PATTERN, secondsToMs } from './flags.ts';
import { pictureOf } from './groups-picture.ts';

const DEFAULT_REGIONS = ['eu:300', 'us:30', 'ap:30'];
const MAX_REGIONS = 20;
const MAX_CALLS = 2_000_000;
const MAX_SPAN_MS = 3_600_000;
const MAX_WAIT_MS = 60_000;

const help = `usage: sluice simulate groups [options]

A limit is kept over regions far apart. Calls come to each by chance, at a pace
of its own, and the limit is kept in three ways beside each other:

  groups  each region has its part of the limit, and a busy one steals what
          quieter ones do not need: the real code, on virtual time
  even    each region has its part, and that is that
  redis   one bucket in the first region, which all others ask from afar

Told is

  used    calls let through, as a part of what the limit allows or, if that is
          less, of what was asked for
  excess  calls beyond burst + rate x span in the worst of all spans. For groups
          it can never exceed rate x deadline; if it does, the exit code is 1
  answer  how long a call waits to be told, on average
          and what each region got, in calls a second

  --region NAME:LOAD[:WEIGHT[:MIN]]
                    a region, how many calls a second are asked for there, how
                    much of the limit it has compared to others (default 1),
                    and at least which part (default 0); once for each
                    (default ${DEFAULT_REGIONS.join(', ')})
  --rate N          calls a second over all regions (default 300)
  --burst N         calls at once (default 300)
  --rtt TIME        there and back between any two regions (default 80ms)
  --link A-B=TIME   there and back between these two; once for each
  --jitter X        how much longer a way takes at most, as a part (default 0.1)
  --reserve X       what part of its burst a region keeps for itself (default 0.5)
  --deadline TIME   what takes longer has failed (default 500ms)
  --cut NAME@A-B    from second A to B nobody reaches this region, and it reaches
                    nobody; once for each
  --span TIME       how long (default 60s, at most 1h)
  --seed N          another story (default 1)

  --svg FILE        also write a picture: what each region got over time
  --json            all figures as one line instead

  sluice simulate groups
  sluice simulate groups --cut eu@20-35 --svg split.svg
  sluice simulate groups --region eu:400 --region us:10 --region ap:10:1:0.1 --link eu-ap=250ms`;

export const simulateGroups: Command = {
  name: 'groups',
  summary: 'regions far apart that keep one limit, and steal from each other',
  help,

  async run(args, terminal) {
    const flags = readFlags(args);
    const options = readRegionsOptions(flags);
    const runs = [];
    for (const design of DESIGNS) {
      terminal.progress?.(`${design} ...`);
      const run = await simulateRegions(design, options);
      runs.push({ design, run, figures: figuresOf(run, options) });
    }
    terminal.progress?.('');
    if (flags.json) terminal.print(JSON.stringify(Object.fromEntries(runs.map(jsonEntryOf))));
    else for (const line of tableOf(options, runs)) terminal.print(line);
    if (flags.svg !== undefined) {
      writeTextFile(flags.svg, drawSvg(pictureOf(options, runs)));
      terminal.error(`wrote ${flags.svg}`);
    }
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
  const rows = runs.map(({ design, figures: own }) => [
    design,
    `${(own.utilisation * 100).toFixed(1)} %`,
    own.overshootCalls.toFixed(1),
    `${own.answerMs.toFixed(0)} ms`,
    ...names.map((name) => `${(own.rates.get(name) ?? 0).toFixed(1)}/s`),
  ]);
  return [
    `${rate} calls/s, burst ${burst}, over ${regions.length} regions ${rttMs} ms apart, for ${spanMs / 1000} s`,
    `asked for: ${loads}`,
    '',
    ...alignColumns([['', 'used', 'excess', 'answer', ...names], ...rows], '  ', 1),
    '',
    `excess of groups is bounded by ${figures.bound.toFixed(0)}: rate x deadline${figures.overshootCalls <= figures.bound ? '' : ': BROKEN'}`,
  ];
}

function readFlags(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const several = { type: 'string', multiple: true } as const;
  const { values, positionals } = readArgs(args, {
    region: several,
    rate: text,
    burst: text,
    rtt: text,
    link: several,
    jitter: text,
    reserve: text,
    deadline: text,
    cut: several,
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
    throw new UsageError(
      `expected 2 to ${MAX_REGIONS} regions, each by another name, got ${names}`,
    );
  }
  const part = { min: 0, max: 1 };
  const wait = { min: 0, max: MAX_WAIT_MS };
  const options: RegionsOptions = {
    regions,
    rate: rangeFlag('rate', flags.rate, 300, { min: 0.001, max: MAX_AMOUNT }),
    burst: rangeFlag('burst', flags.burst, 300, { min: 1, max: MAX_AMOUNT }),
    rttMs: durationFlag('rtt', flags.rtt, 80, wait),
    links: (flags.link ?? []).map((text) => readLink(text, names)),
    jitter: rangeFlag('jitter', flags.jitter, 0.1, part),
    reserve: rangeFlag('reserve', flags.reserve, 0.5, part),
    deadlineMs: durationFlag('deadline', flags.deadline, 500, { min: 1, max: MAX_WAIT_MS }),
    outages: (flags.cut ?? []).map((text) => readCut(text, names, spanMs)),
    spanMs,
    seed: rangeFlag('seed', flags.seed, 1, { min: 0, max: 2 ** 31, integer: true }),
  };
  const calls = (regions.reduce((sum, { load }) => sum + load, 0) * spanMs) / 1000;
  if (calls <= MAX_CALLS) return options;
  throw new UsageError(
    `expected at most ${MAX_CALLS} calls, got ${Math.round(calls)}: loads x span`,
  );
}

function readRegion(text: string): Region {
  const number = String.raw`(\d+(?:\.\d+)?)`;
  const pattern = new RegExp(`^([^:@=-]+):${number}(?::${number}(?::${number})?)?$`);
  const [, name, load, weight = '1', min = '0'] = pattern.exec(text) ?? [];
  if (name !== undefined && Number(load) <= MAX_AMOUNT && Number(min) <= 1) {
    return { name, load: Number(load), weight: Number(weight), min: Number(min) };
  }
  throw new UsageError(
    `expected \`--region\` to be a name and its calls a second, and maybe its weight and its least part from 0 to 1, such as eu:300:2:0.1, got "${text}"`,
  );
}

function readLink(text: string, names: readonly string[]): Link {
  const [, from = '', to = '', time] = /^([^=-]+)-([^=-]+)=(.+)$/.exec(text) ?? [];
  if (names.includes(from) && names.includes(to) && from !== to) {
    const rttMs = durationFlag('link', time, 0, { min: 0, max: MAX_WAIT_MS });
    return { between: [from, to], rttMs };
  }
  throw new UsageError(
    `expected \`--link\` to be two of the regions ${names.join(', ')} and a time, such as ${names[0]}-${names[1]}=150ms, got "${text}"`,
  );
}

function readCut(text: string, names: readonly string[], spanMs: number): RegionOutage {
  const [, region = '', from, to] =
    new RegExp(`^([^@]+)@${SECONDS_PATTERN}-${SECONDS_PATTERN}$`).exec(text) ?? [];
  const cut = { region, fromMs: secondsToMs(from), toMs: secondsToMs(to) };
  if (names.includes(region) && cut.fromMs < cut.toMs && cut.toMs <= spanMs) return cut;
  throw new UsageError(
    `expected \`--cut\` to be one of the regions ${names.join(', ')} and two seconds of the ${spanMs / 1000} there are, such as ${names[0]}@20-35, got "${text}"`,
  );
}
