/** `sluice simulate sweep`: what each option of the adaptive limit does, measured. */

import { Fields } from '../../core/options.ts';
import {
  RIPPLE,
  SCENARIOS,
  type ScenarioName,
  type Setting,
  scenario,
  type Watched,
} from '../../simulator/adaptive/scenario.ts';
import {
  type Cell,
  type CellPlan,
  runCell,
  SWEEP_OPTIONS,
  SWEEPS,
  type SweepOption,
  type SweepValue,
} from '../../simulator/adaptive/sweep.ts';
import { drawSvg } from '../chart/svg.ts';
import {
  type Command,
  EXIT_OK,
  numberFlag,
  rangeFlag,
  readArgs,
  type Terminal,
  UsageError,
  upTo,
  writeText,
} from '../framework/command.ts';
import { curvesOf, timelinesOf } from './sweep-picture.ts';
import { markdownOf, tableOf } from './sweep-table.ts';

const SEEDS = 5;
const SEEDS_MAX = 101;
const CLIENTS_MAX = 64;
const SIZE_MAX = 16;
const VALUES_MAX = 20;
const WATCH_S_MAX = 3600;

/** Room for many clients to have more than one call each in flight. */
const FLEET_SIZE = 4;

const listed = (names: readonly string[]): string => names.join(', ');

const help = `usage: sluice simulate sweep [OPTION] [options]

Runs the adaptive limit on virtual time against sinks with a character, for a
range of values of OPTION, all else as by default. Without OPTION every option
has its turn, in half a minute or so: ${listed(SWEEP_OPTIONS.slice(0, 3))},
${listed(SWEEP_OPTIONS.slice(3))}.

${SCENARIOS.map((name) => `  ${name.padEnd(10)} ${scenario(name).about}`).join('\n')}

There is always more to send. A refused attempt is tried again after 1, 1, 2,
3, 5 ... seconds, one without an answer is given up after a second. Counted
are the seconds from 20 to 80, in steady the first 60; of slowStart and initial
the first 20. Each line is the median of several runs, * marks the default:

  best       completed calls, in percent of what the sink could have done
  spread     the same in the worst and the best of the runs
  rejected   attempts that were refused or got no answer
  mean p95 p99   milliseconds from an attempt's start to its good answer
  limit      mean of the limit, of all clients together
  there in   seconds until a whole second ran at 90 % of the capacity
  back in    the same from the end of the incident on
  in step    how much clients' limits move together: 1 is a march, 0 a crowd
  sway       how much all calls in flight go up and down: deviation over mean
  fair       Jain's index over the clients' completed calls; 1 is fair

  --scenario NAME  only this one; may be given repeatedly
  --values LIST    these values of OPTION, such as 0.1,0.3
  --clients LIST   so many clients on one sink, such as 1,4,16 (default 1, but
                   1,4,16 for jitter, on queue, rate and strict)
  --size N         a sink so many times as large (default 1; ${FLEET_SIZE} where there
                   are several clients)
  --ripple X       how uneven service times are, as a part of them (default
                   ${RIPPLE}); 0 makes them all equal, which no real sink does
  --watch A-B      count from second A to second B, where the run ends
  --seeds N        runs of each value (default ${SEEDS})
  --seed N         the seed of the first run (default 1)
  --svg FILE       also write a picture: the values side by side, or with one
                   --scenario the limit over time for each value
  --markdown       one table of all sinks, each as best, rejected, p95 and what
                   else there is: there in, back in, or in step and sway
  --json           one line a value instead of tables: {option, value,
                   scenario, clients, size, seeds, figures: {ofBest: {median,
                   lo, hi}, ...}}; null is never, or not to be had there

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
    if (flags.svg !== undefined) checkPicture(plans);

    for (const plan of plans) {
      const cells = plan.scenarios.flatMap((name) => runScenario(plan, name, flags, terminal));
      if (flags.markdown) for (const line of [...markdownOf(cells), '']) terminal.print(line);
      if (flags.svg === undefined) continue;
      writeText(flags.svg, drawSvg(pictureOf(plan, cells)));
      terminal.complain(`wrote ${flags.svg}`); // not among the lines, which somebody may read
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
  throw new UsageError(`expected OPTION to be one of ${listed(SWEEP_OPTIONS)}, got "${word}"`);
}

/** What is run for one option. */
interface Plan {
  readonly option: SweepOption;
  readonly values: readonly SweepValue[];
  readonly scenarios: readonly ScenarioName[];
  readonly clients: readonly number[];
  readonly setting: Setting & { readonly size: number };
  readonly seeds: readonly number[];
}

/** How it gets there is all that these change. */
const CLIMBS: readonly SweepOption[] = ['slowStart', 'initial'];
const CLIMB: Watched = { fromS: 0, toS: 20 };
const CLIMB_SCENARIOS: readonly ScenarioName[] = ['steady', 'queue', 'rate', 'strict', 'uneven'];

/** What clients share shows where one is in another's way. */
const FLEET_SCENARIOS: readonly ScenarioName[] = ['queue', 'rate', 'strict'];
const FLEET_CLIENTS = '1,4,16';

function planOf(option: SweepOption, flags: Flags): Plan {
  const clients = readClients(flags.clients ?? (option === 'jitter' ? FLEET_CLIENTS : '1'));
  const size = clients.some((count) => count > 1) ? FLEET_SIZE : 1;
  const first = rangeFlag('seed', flags.seed, 1, { min: 0, max: 2 ** 31, whole: true });
  const count = rangeFlag('seeds', flags.seeds, SEEDS, upTo(SEEDS_MAX));
  return {
    option,
    values: flags.values === undefined ? SWEEPS[option].values : readValues(option, flags.values),
    scenarios: readScenarios(flags.scenario ?? usualScenarios(option)),
    clients,
    setting: {
      size: rangeFlag('size', flags.size, size, upTo(SIZE_MAX)),
      ripple: rangeFlag('ripple', flags.ripple, RIPPLE, { min: 0, max: 10 }),
      watch: readWatch(flags.watch) ?? (CLIMBS.includes(option) ? CLIMB : undefined),
    },
    seeds: Array.from({ length: count }, (_, n) => first + n),
  };
}

function usualScenarios(option: SweepOption): readonly ScenarioName[] {
  if (option === 'jitter') return FLEET_SCENARIOS;
  return CLIMBS.includes(option) ? CLIMB_SCENARIOS : SCENARIOS;
}

function readScenarios(names: readonly string[]): readonly ScenarioName[] {
  return names.map((name) => new Fields('', { '--scenario': name }).oneOf('--scenario', SCENARIOS));
}

function readValues(option: SweepOption, list: string): readonly SweepValue[] {
  const words = list.split(',').map((word) => word.trim());
  if (words.length > VALUES_MAX) {
    throw new UsageError(`expected at most ${VALUES_MAX} --values, got ${words.length}`);
  }
  if (typeof SWEEPS[option].usual === 'number') {
    return words.map((word) => numberFlag('values', word, 0));
  }
  return words.map((word) => {
    if (word === 'true' || word === 'false') return word === 'true';
    throw new UsageError(`expected \`--values\` of ${option} to be true or false, got "${word}"`);
  });
}

const readClients = (list: string): readonly number[] =>
  list.split(',').map((word) => rangeFlag('clients', word, 1, upTo(CLIENTS_MAX)));

function readWatch(text: string | undefined): Watched | undefined {
  if (text === undefined) return undefined;
  const [, from, to] = /^\s*(\d+)-(\d+)\s*$/.exec(text) ?? [];
  const watch = { fromS: Number(from), toS: Number(to) };
  if (watch.toS > watch.fromS && watch.toS <= WATCH_S_MAX) return watch;
  throw new UsageError(
    `expected \`--watch\` to be two seconds up to ${WATCH_S_MAX}, such as 300-600, got "${text}"`,
  );
}

/** Before the work, not after a minute of it. */
function checkPicture([plan]: readonly Plan[]): void {
  if (plan.scenarios.length === 1 || typeof SWEEPS[plan.option].usual === 'number') return;
  throw new UsageError(
    `expected one --scenario for --svg, as ${plan.option} is drawn over time, got ${plan.scenarios.length}`,
  );
}

function runScenario(plan: Plan, name: ScenarioName, flags: Flags, terminal: Terminal): Cell[] {
  const sink = scenario(name, plan.setting);
  const { option, seeds } = plan;
  const cellPlans = plan.clients.flatMap((clients) =>
    plan.values.map((value): CellPlan => ({ option, value, scenario: sink, clients, seeds })),
  );
  const cells = runAll(cellPlans, terminal);
  if (flags.markdown) return cells; // which is one table of all
  const lines = flags.json
    ? cells.map((cell) => jsonLine(cell, plan.setting.size))
    : [`${option} on ${name}: ${sink.about}`, '', ...tableOf(cells), ''];
  for (const line of lines) terminal.print(line);
  return cells;
}

/** Says what it is at while it is, and takes that back before anything else is said. */
function runAll(plans: readonly CellPlan[], terminal: Terminal): Cell[] {
  try {
    return plans.map((plan, n) => {
      const { option, value, scenario } = plan;
      terminal.hint?.(`${option} ${value} on ${scenario.name}, ${n + 1} of ${plans.length} ...`);
      return runCell(plan);
    });
  } finally {
    terminal.hint?.('');
  }
}

function jsonLine({ option, value, scenario, clients, seeds, figures }: Cell, size: number) {
  const plan = { option, value, scenario: scenario.name, clients, size, seeds: seeds.length };
  return JSON.stringify({ ...plan, figures });
}

const pictureOf = (plan: Plan, cells: readonly Cell[]) =>
  plan.scenarios.length === 1 ? timelinesOf(cells) : curvesOf(cells);
