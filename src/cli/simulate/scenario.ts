import { checkExpectations } from '../../simulator/scenario/expectations.ts';
import { runScenario } from '../../simulator/scenario/run.ts';
import type { Scenario } from '../../simulator/scenario/scenario.ts';
import { drawChart } from '../chart/terminal.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  type FlagValues,
  integerUpTo,
  onlyPositional,
  rangeFlag,
  readArgs,
  requireDirectory,
  SWITCH,
  TEXT,
  type Terminal,
  writeTextFile,
} from '../framework/command.ts';
import { progressBar } from '../framework/progress-bar.ts';
import { SEED_RANGE, writeSvg } from './flags.ts';
import { loadScenario, loadScenarioWithRule } from './scenario-file.ts';
import { scenarioHtml } from './scenario-html.ts';
import { chartsOf, pictureOf } from './scenario-picture.ts';
import { reportJson, reportLines, reportOf, type ScenarioReport } from './scenario-report.ts';
import { areMet, MAX_SEEDS, type SeedResult, seedLines, seedResultOf } from './scenario-seeds.ts';

const help = `usage: sluice simulate FILE.yaml [options]

Runs a scenario on virtual time: clients, a load balancer, nodes with limits and
a backend that shares them, a server, faults. Prints the calls by client, draws
them over time, and compares figures with the ranges that the file expects.
Every expectation that is missed is listed; the exit code is then 1.

  duration: 30s
  nodes: 3
  limits:
    api: { bucket: { rate: 10/s, burst: 10 }, peers: true }
  clients:
    mallory: { rate: 60/s }
    alice: { rate: 5/s, shape: poisson }
  faults:
    - { at: 10s, crash: 1, for: 5s }
  expect:
    - { allowedPerSecond: [9, 11], of: mallory, from: 20s }
    - { denied: 0, of: alice }

options:
  --seed N         seed of the random numbers, in place of that of the file
  --seeds N        runs it with N seeds, one after the other, and prints the
                   lowest, median and highest value of each expectation, and
                   the seeds that missed it
  --compare OTHER  runs OTHER beside it: another file, or another rule for the
                   limit of this one, such as '{window: {limit: 10, per: 1s}}'
  --svg FILE       also draw the charts as SVG
  --html FILE      also write a report that needs no other file
  --json           one line of JSON per scenario, without charts

All fields: docs/reference/scenarios.md. Examples: scenarios/`;

const CHART_ROWS = 8;

export const simulateScenario: Command = {
  help,

  async run(args, terminal) {
    const { values: flags, positionals } = readArgs(args, {
      ...{ seed: TEXT, seeds: TEXT, compare: TEXT, svg: TEXT, html: TEXT, json: SWITCH },
    });
    const file = onlyPositional(positionals, 'scenario file');
    if (flags.seeds !== undefined) return runSeeds(file, flags, terminal);
    for (const output of [flags.svg, flags.html]) requireDirectory(output);
    const scenarios = [loadScenario(file), ...compared(file, flags.compare)].map((scenario) => ({
      ...scenario,
      seed: rangeFlag(flags, 'seed', scenario.seed, SEED_RANGE),
    }));
    const reports: ScenarioReport[] = [];
    for (const scenario of scenarios) reports.push(await runWithProgress(scenario, terminal));
    const runs = reports.map(({ run }) => run);
    if (flags.json)
      for (const report of reports) terminal.print(JSON.stringify(reportJson(report)));
    else printReport(reports, terminal);
    writeSvg(flags.svg, () => pictureOf(runs), terminal);
    if (flags.html !== undefined) {
      writeTextFile(flags.html, scenarioHtml(reports, chartsOf(runs)));
      terminal.error(`wrote ${flags.html}`);
    }
    return reports.every(areMet) ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

type Flags = FlagValues<'seed' | 'seeds' | 'compare' | 'svg' | 'html'> & {
  readonly json?: boolean;
};

/** Runs one scenario with several seeds. */
async function runSeeds(file: string, flags: Flags, terminal: Terminal): Promise<number> {
  const other = (['compare', 'svg', 'html'] as const).find((name) => flags[name] !== undefined);
  if (other) throw new CommandError(`expected \`--seeds\` without \`--${other}\`: it draws no run`);
  const scenario = loadScenario(file);
  const count = rangeFlag(flags, 'seeds', 1, integerUpTo(MAX_SEEDS));
  const first = rangeFlag(flags, 'seed', scenario.seed, SEED_RANGE);
  const results: SeedResult[] = [];
  for (let seed = first; seed < first + count; seed++) {
    const report = await runWithProgress({ ...scenario, seed }, terminal);
    if (flags.json) terminal.print(JSON.stringify(reportJson(report)));
    results.push(seedResultOf(report));
  }
  if (!flags.json) for (const line of seedLines(scenario.name, results)) terminal.print(line);
  return results.every(areMet) ? EXIT_OK : EXIT_CHECK_FAILED;
}

/** A text with a brace or a colon and a space is a rule. */
function compared(file: string, other: string | undefined): Scenario[] {
  if (other === undefined) return [];
  const isRule = /[{}]|: /.test(other);
  return [isRule ? loadScenarioWithRule(file, other) : loadScenario(other)];
}

/** Shows the progress while it runs, and clears it at the end. */
async function runWithProgress(
  scenario: Scenario,
  { progress }: Terminal,
): Promise<ScenarioReport> {
  try {
    let last = -1;
    const run = await runScenario(scenario, (fraction) => {
      const percent = Math.floor(fraction * 100);
      if (percent > last)
        progress?.(`${scenario.name}, seed ${scenario.seed} ${progressBar(fraction)}`);
      last = percent;
    });
    return reportOf(run, checkExpectations(run));
  } finally {
    progress?.('');
  }
}

function printReport(reports: readonly ScenarioReport[], terminal: Terminal): void {
  const { columns } = terminal;
  for (const chart of chartsOf(reports.map(({ run }) => run))) {
    for (const line of drawChart(chart, { columns, rows: CHART_ROWS })) terminal.print(line);
    terminal.print('');
  }
  for (const line of reportLines(reports)) terminal.print(line);
}
