/** `sluice simulate sweep`: what each option of the adaptive limit does, measured. */

import { OptionReader } from '../../core/options.ts';
import {
  createScenario,
  DEFAULT_SERVICE_JITTER,
  type ObservationWindow,
  SCENARIOS,
  type ScenarioName,
  type ScenarioOptions,
} from '../../simulator/adaptive/scenario.ts';
import {
  runSweepCell,
  SWEEP_OPTIONS,
  SWEEPS,
  type SweepCell,
  type SweepCellPlan,
  type SweepOption,
  type SweepValue,
} from '../../simulator/adaptive/sweep.ts';
import { drawSvg } from '../chart/svg.ts';
import {
  type Command,
  EXIT_OK,
  integerUpTo,
  numberFlag,
  rangeFlag,
  readArgs,
  type Terminal,
  UsageError,
  writeTextFile,
} from '../framework/command.ts';
import { curvesPicture, timelinesPicture } from './sweep-picture.ts';
import { markdownOf, tableOf } from './sweep-table.ts';

const DEFAULT_SEEDS = 5;
const MAX_SEEDS = 101;
const MAX_CLIENTS = 64;
const MAX_SIZE = 16;
const MAX_VALUES = 20;
const MAX_WATCH_S = 3600;

/** Room for many clients to have more than one call each in flight. */
const FLEET_SIZE = 4;

const commaSeparated = (names: readonly string[]): string => names.join(', ');

const help = `usage: sluice simulate sweep [OPTION] [options]

Runs the adaptive limit on virtual time against sinks with a character, for a
range of values of OPTION, all else as by default. Without OPTION every option
has its turn, in half a minute or so: ${commaSeparated(SWEEP_OPTIONS.slice(0, 3))},
${commaSeparated(SWEEP_OPTIONS.slice(3))}.

${SCENARIOS.map((name) => `  ${name.padEnd(10)} ${createScenario(name).description}`).join('\n')}

There is always more to send. A refused attempt is tried again after 1, 1, 2,
3, 5 ... seconds, one without an answer is given up after a second. Counted
are the seconds from 20 to 80, in steady the first 60; of slowStart and initial
the first 20. Each line is the median of several runs, * marks the default:

  best       completed calls, in percent of what the sink could have done
  spread     the same in the worst and the best of the runs
  rejected   attempts that were refused or got no answer
  mean p95 p99   milliseconds from an attempt's start to its good answer
  limit      mean of the limit, of all clients together
  ramp-up    seconds until a whole second ran at 90 % of the capacity
  recovery   the same from the end of the incident on
  corr       how much clients' limits move together: 1 is a march, 0 a crowd
  osc        how much all calls in flight go up and down: deviation over mean
  fair       Jain's index over the clients' completed calls; 1 is fair

  --scenario NAME  only this one; may be given repeatedly
  --values LIST    these values of OPTION, such as 0.1,0.3
  --clients LIST   so many clients on one sink, such as 1,4,16 (default 1, but
                   1,4,16 for jitter, on queue, rate and strict)
  --size N         a sink so many times as large (default 1; ${FLEET_SIZE} where there
                   are several clients)
  --ripple X       how uneven service times are, as a part of them (default
                   ${DEFAULT_SERVICE_JITTER}); 0 makes them all equal, which no real sink does
  --watch A-B      count from second A to second B, where the run ends
  --seeds N        runs of each value (default ${DEFAULT_SEEDS})
  --seed N         the seed of the first run (default 1)
  --svg FILE       also write a picture: the values side by side, or with one
                   --scenario the limit over time for each value
  --markdown       one table of all sinks, each as best, rejected, p95 and what
                   else there is: ramp-up, recovery, or corr and osc
  --json           one line a value instead of tables: {option, value,
                   scenario, clients, size, seeds, figures: {utilisation:
                   {median, lo, hi}, ...}}; null is never, or not known there

  sluice simulate sweep decreaseRatio
  sluice simulate sweep jitter --clients 16 --scenario rate --values 0,1`;

export const simulateSweep: Command = {
  name: 'sweep',
  summary: 'what each option of the adaptive limit does, measured',
  help,

  run(args, terminal) {
    const flags = readFlags(args);
    const options = readOptions(flags);
    if (flags.json && flags.markdown)
      throw new UsageError('expected --json or --markdown, got both');
    const plans = options.map((option) => planOf(option, flags));
    if (flags.svg !== undefined) requireDrawable(plans);

    for (const plan of plans) {
      const cells = plan.scenarios.flatMap((name) => runScenario(plan, name, flags, terminal));
      if (flags.markdown) for (const line of [...markdownOf(cells), '']) terminal.print(line);
      if (flags.svg === undefined) continue;
      writeTextFile(flags.svg, drawSvg(pictureOf(plan, cells)));
      terminal.error(`wrote ${flags.svg}`); // not among the lines, which somebody may read
    }
    return EXIT_OK;
  },
};

function readFlags(args: readonly string[]) {
  const text = { type: 'string' } as const;
  const { values, positionals } = readArgs(args, {
    scenario: { type: 'string', multiple: true },
    values: text,
    clients: text,
    size: text,
    ripple: text,
    watch: text,
    seeds: text,
    seed: text,
    svg: text,
    markdown: { type: 'boolean' },
    json: { type: 'boolean' },
  });
  return { ...values, words: positionals };
}

type Flags = ReturnType<typeof readFlags>;

function readOptions({ words: [word, ...others], values, svg }: Flags): readonly SweepOption[] {
  if (others.length > 0) throw new UsageError(`expected one OPTION, got "${others[0]}" as well`);
  if (word === undefined) {
    if (values !== undefined)
      throw new UsageError('expected an OPTION whose --values they are, got none');
    if (svg !== undefined) throw new UsageError('expected one OPTION for --svg to draw, got none');
    return SWEEP_OPTIONS;
  }
  const option = SWEEP_OPTIONS.find((name) => name === word);
  if (option) return [option];
  throw new UsageError(
    `expected OPTION to be one of ${commaSeparated(SWEEP_OPTIONS)}, got "${word}"`,
  );
}

/** What is run for one option. */
interface SweepPlan {
  readonly option: SweepOption;
  readonly values: readonly SweepValue[];
  readonly scenarios: readonly ScenarioName[];
  readonly clients: readonly number[];
  readonly setting: ScenarioOptions & { readonly scale: number };
  readonly seeds: readonly number[];
}

/** How it gets there is all that these change. */
const STARTUP_OPTIONS: readonly SweepOption[] = ['slowStart', 'initial'];
const STARTUP_WINDOW: ObservationWindow = { fromS: 0, toS: 20 };
const STARTUP_SCENARIOS: readonly ScenarioName[] = ['steady', 'queue', 'rate', 'strict', 'uneven'];

/** What clients share shows where one is in another's way. */
const FLEET_SCENARIOS: readonly ScenarioName[] = ['queue', 'rate', 'strict'];
const FLEET_CLIENTS = '1,4,16';

function planOf(option: SweepOption, flags: Flags): SweepPlan {
  const clients = readClients(flags.clients ?? (option === 'jitter' ? FLEET_CLIENTS : '1'));
  const size = clients.some((count) => count > 1) ? FLEET_SIZE : 1;
  const first = rangeFlag('seed', flags.seed, 1, { min: 0, max: 2 ** 31, integer: true });
  const count = rangeFlag('seeds', flags.seeds, DEFAULT_SEEDS, integerUpTo(MAX_SEEDS));
  return {
    option,
    values: flags.values === undefined ? SWEEPS[option].values : readValues(option, flags.values),
    scenarios: readScenarios(flags.scenario ?? defaultScenarios(option)),
    clients,
    setting: {
      scale: rangeFlag('size', flags.size, size, integerUpTo(MAX_SIZE)),
      serviceJitter: rangeFlag('ripple', flags.ripple, DEFAULT_SERVICE_JITTER, { min: 0, max: 10 }),
      window:
        readWatch(flags.watch) ?? (STARTUP_OPTIONS.includes(option) ? STARTUP_WINDOW : undefined),
    },
    seeds: Array.from({ length: count }, (_, n) => first + n),
  };
}

function defaultScenarios(option: SweepOption): readonly ScenarioName[] {
  if (option === 'jitter') return FLEET_SCENARIOS;
  return STARTUP_OPTIONS.includes(option) ? STARTUP_SCENARIOS : SCENARIOS;
}

function readScenarios(names: readonly string[]): readonly ScenarioName[] {
  return names.map((name) =>
    new OptionReader('', { '--scenario': name }).oneOf('--scenario', SCENARIOS),
  );
}

function readValues(option: SweepOption, list: string): readonly SweepValue[] {
  const words = list.split(',').map((word) => word.trim());
  if (words.length > MAX_VALUES) {
    throw new UsageError(`expected at most ${MAX_VALUES} --values, got ${words.length}`);
  }
  if (typeof SWEEPS[option].defaultValue === 'number') {
    return words.map((word) => numberFlag('values', word, 0));
  }
  return words.map((word) => {
    if (word === 'true' || word === 'false') return word === 'true';
    throw new UsageError(`expected \`--values\` of ${option} to be true or false, got "${word}"`);
  });
}

const readClients = (list: string): readonly number[] =>
  list.split(',').map((word) => rangeFlag('clients', word, 1, integerUpTo(MAX_CLIENTS)));

function readWatch(text: string | undefined): ObservationWindow | undefined {
  if (text === undefined) return undefined;
  const [, from, to] = /^\s*(\d+)-(\d+)\s*$/.exec(text) ?? [];
  const watch = { fromS: Number(from), toS: Number(to) };
  if (watch.toS > watch.fromS && watch.toS <= MAX_WATCH_S) return watch;
  throw new UsageError(
    `expected \`--watch\` to be two seconds up to ${MAX_WATCH_S}, such as 300-600, got "${text}"`,
  );
}

/** Before the work, not after a minute of it. */
function requireDrawable([plan]: readonly SweepPlan[]): void {
  if (plan.scenarios.length === 1 || typeof SWEEPS[plan.option].defaultValue === 'number') return;
  throw new UsageError(
    `expected one --scenario for --svg, as ${plan.option} is drawn over time, got ${plan.scenarios.length}`,
  );
}

function runScenario(
  plan: SweepPlan,
  name: ScenarioName,
  flags: Flags,
  terminal: Terminal,
): SweepCell[] {
  const sink = createScenario(name, plan.setting);
  const { option, seeds } = plan;
  const cellPlans = plan.clients.flatMap((clients) =>
    plan.values.map((value): SweepCellPlan => ({ option, value, scenario: sink, clients, seeds })),
  );
  const cells = runCells(cellPlans, terminal);
  if (flags.markdown) return cells; // which is one table of all
  const lines = flags.json
    ? cells.map((cell) => jsonLine(cell, plan.setting.scale))
    : [`${option} on ${name}: ${sink.description}`, '', ...tableOf(cells), ''];
  for (const line of lines) terminal.print(line);
  return cells;
}

/** Says what it is at while it is, and takes that back before anything else is said. */
function runCells(plans: readonly SweepCellPlan[], terminal: Terminal): SweepCell[] {
  try {
    return plans.map((plan, n) => {
      const { option, value, scenario } = plan;
      terminal.progress?.(
        `${option} ${value} on ${scenario.name}, ${n + 1} of ${plans.length} ...`,
      );
      return runSweepCell(plan);
    });
  } finally {
    terminal.progress?.('');
  }
}

function jsonLine({ option, value, scenario, clients, seeds, figures }: SweepCell, size: number) {
  const plan = { option, value, scenario: scenario.name, clients, size, seeds: seeds.length };
  return JSON.stringify({ ...plan, figures });
}

const pictureOf = (plan: SweepPlan, cells: readonly SweepCell[]) =>
  plan.scenarios.length === 1 ? timelinesPicture(cells) : curvesPicture(cells);
