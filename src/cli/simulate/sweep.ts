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
import {
  type Command,
  CommandError,
  EXIT_OK,
  integerUpTo,
  LIST,
  numberFlag,
  rangeFlag,
  readArgs,
  SWITCH,
  TEXT,
  type Terminal,
} from '../framework/command.ts';
import { readForm, SEED_RANGE, writeSvg } from './flags.ts';
import { curvesPicture, timelinesPicture } from './sweep-picture.ts';
import { markdownOf, tableOf } from './sweep-table.ts';

const DEFAULT_SEEDS = 5;
const MAX_SEEDS = 101;
const MAX_CLIENTS = 64;
const MAX_SIZE = 16;
const MAX_VALUES = 20;
const MAX_WATCH_S = 3600;

/** Large enough for several calls in flight per client. */
const FLEET_SIZE = 4;

const commaSeparated = (names: readonly string[]): string => names.join(', ');

const help = `usage: sluice simulate sweep [OPTION] [options]

Runs the adaptive concurrency limit (AIMD on round-trip times) on virtual time
for a range of values of OPTION, with defaults for all other options. Without
OPTION sweeps all of them, in about half a minute: ${commaSeparated(SWEEP_OPTIONS.slice(0, 2))},
${commaSeparated(SWEEP_OPTIONS.slice(2))}.

Simulated sinks:

${SCENARIOS.map((name) => `  ${name.padEnd(10)} ${createScenario(name).description}`).join('\n')}

The backlog of a client never ends. An attempt times out after one second; a
refused attempt is retried after 1, 1, 2, 3, 5 ... seconds. Figures cover
seconds 20 to 80; the first 60 on steady; the first 20 for slowStart and
initial. A line is the median over several seeds. * marks the default.

  util       utilisation: completed calls, in percent of the sink's capacity
  spread     lowest and highest utilisation over the seeds
  rejected   attempts that were refused or timed out
  mean p95 p99   latency of successful attempts, in milliseconds
  limit      mean limit, sum over all clients
  ramp-up    time until a whole second ran at 90 % of the capacity
  recovery   the same, from the end of the incident
  corr       correlation between the changes of the clients' limits
  osc        oscillation: standard deviation / mean of all calls in flight
  fair       Jain's fairness index of completed calls: 1 is even

  --scenario NAME  only this sink; repeatable
  --values LIST    values of OPTION, such as 0.1,0.3
  --clients LIST   numbers of clients on one sink, such as 1,4,16 (default 1;
                   for jitter 1,4,16 on queue, rate and strict)
  --size N         capacity factor of the sink (default 1; ${FLEET_SIZE} with several
                   clients)
  --service-jitter X
                   variation of service times, relative to their mean (default
                   ${DEFAULT_SERVICE_JITTER}); 0: constant service times
  --watch A-B      measure from second A to B; the run ends at B
  --seeds N        runs per value (default ${DEFAULT_SEEDS})
  --seed N         seed of the first run (default 1)
  --svg FILE       also draw the figures over the values, or with one
                   --scenario the limit over time
  --markdown       one table of all sinks: utilisation, rejected, p95, and
                   ramp-up, recovery, or corr and osc
  --json           one line of JSON per value: {option, value, scenario,
                   clients, size, seeds, figures: {utilisation: {median, lo,
                   hi}, ...}}; null is never, or not defined there

examples:
  sluice simulate sweep decreaseRatio
  sluice simulate sweep jitter --clients 16 --scenario rate --values 0,1`;

export const simulateSweep: Command = {
  help,

  run(args, terminal) {
    const { values: flags, positionals } = readArgs(args, FLAGS);
    const options = readOptions(positionals, flags);
    if (flags.json && flags.markdown)
      throw new CommandError('expected --json or --markdown, got both');
    const plans = options.map((option) => planOf(option, flags));
    if (flags.svg !== undefined) requireDrawable(plans);

    for (const plan of plans) {
      const cells = plan.scenarios.flatMap((name) => runScenario(plan, name, flags, terminal));
      if (flags.markdown) for (const line of [...markdownOf(cells), '']) terminal.print(line);
      writeSvg(flags.svg, () => pictureOf(plan, cells), terminal);
    }
    return EXIT_OK;
  },
};

const FLAGS = {
  scenario: LIST,
  values: TEXT,
  clients: TEXT,
  size: TEXT,
  'service-jitter': TEXT,
  watch: TEXT,
  seeds: TEXT,
  seed: TEXT,
  svg: TEXT,
  markdown: SWITCH,
  json: SWITCH,
};

type Flags = ReturnType<typeof readArgs<typeof FLAGS>>['values'];

function readOptions(
  [word, ...others]: readonly string[],
  { values, svg }: Flags,
): readonly SweepOption[] {
  if (others.length > 0) throw new CommandError(`expected one OPTION, got "${others[0]}" as well`);
  if (word === undefined) {
    if (values !== undefined)
      throw new CommandError('expected an OPTION whose --values they are, got none');
    if (svg !== undefined)
      throw new CommandError('expected one OPTION for --svg to draw, got none');
    return SWEEP_OPTIONS;
  }
  const option = SWEEP_OPTIONS.find((name) => name === word);
  if (option) return [option];
  throw new CommandError(
    `expected OPTION to be one of ${commaSeparated(SWEEP_OPTIONS)}, got "${word}"`,
  );
}

/** The runs of one option. */
interface SweepPlan {
  readonly option: SweepOption;
  readonly values: readonly SweepValue[];
  readonly scenarios: readonly ScenarioName[];
  readonly clients: readonly number[];
  readonly setting: ScenarioOptions & { readonly scale: number };
  readonly seeds: readonly number[];
}

/** Options that change the ramp-up only. */
const STARTUP_OPTIONS: readonly SweepOption[] = ['slowStart', 'initial'];
const STARTUP_WINDOW: ObservationWindow = { fromS: 0, toS: 20 };
const STARTUP_SCENARIOS: readonly ScenarioName[] = ['steady', 'queue', 'rate', 'strict', 'uneven'];

/** Sinks on which clients affect each other. */
const FLEET_SCENARIOS: readonly ScenarioName[] = ['queue', 'rate', 'strict'];
const FLEET_CLIENTS = '1,4,16';

function planOf(option: SweepOption, flags: Flags): SweepPlan {
  const clients = readClients(flags.clients ?? (option === 'jitter' ? FLEET_CLIENTS : '1'));
  const size = clients.some((count) => count > 1) ? FLEET_SIZE : 1;
  const first = rangeFlag(flags, 'seed', 1, SEED_RANGE);
  const count = rangeFlag(flags, 'seeds', DEFAULT_SEEDS, integerUpTo(MAX_SEEDS));
  return {
    option,
    values: flags.values === undefined ? SWEEPS[option].values : readValues(option, flags.values),
    scenarios: readScenarios(flags.scenario ?? defaultScenarios(option)),
    clients,
    setting: {
      scale: rangeFlag(flags, 'size', size, integerUpTo(MAX_SIZE)),
      serviceJitter: rangeFlag(flags, 'service-jitter', DEFAULT_SERVICE_JITTER, {
        min: 0,
        max: 10,
      }),
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
    throw new CommandError(`expected at most ${MAX_VALUES} --values, got ${words.length}`);
  }
  if (typeof SWEEPS[option].defaultValue === 'number') {
    return words.map((values) => numberFlag({ values }, 'values', 0));
  }
  return words.map((word) => {
    if (word === 'true' || word === 'false') return word === 'true';
    throw new CommandError(`expected \`--values\` of ${option} to be true or false, got "${word}"`);
  });
}

const readClients = (list: string): readonly number[] =>
  list.split(',').map((clients) => rangeFlag({ clients }, 'clients', 1, integerUpTo(MAX_CLIENTS)));

const readWatch = (text: string | undefined): ObservationWindow | undefined =>
  readForm(text, {
    name: 'watch',
    pattern: '\\s*(\\d+)-(\\d+)\\s*',
    expected: `two seconds up to ${MAX_WATCH_S}, such as 300-600`,
    read(from, to) {
      const window = { fromS: Number(from), toS: Number(to) };
      return window.toS > window.fromS && window.toS <= MAX_WATCH_S && window;
    },
  });

/** Fails before the runs instead of after them. */
function requireDrawable([plan]: readonly SweepPlan[]): void {
  if (plan.scenarios.length === 1 || typeof SWEEPS[plan.option].defaultValue === 'number') return;
  throw new CommandError(
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
  if (flags.markdown) return cells; // printed as one table of all sinks
  const lines = flags.json
    ? cells.map((cell) => jsonLine(cell, plan.setting.scale))
    : [`${option} on ${name}: ${sink.description}`, '', ...tableOf(cells), ''];
  for (const line of lines) terminal.print(line);
  return cells;
}

/** Shows the progress, and clears it before the results are printed. */
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
