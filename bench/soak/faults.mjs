/**
 * Plays faults against real servers and real processes, and compares the damage with its bound.
 *
 *     npm run soak:faults                       all scenarios; seven minutes; needs redis-server, nats-server and etcd
 *     npm run soak:faults -- --help             the options, and the scenarios with their bounds and reasons
 *
 * A worker is a process of its own that writes every permit into a file. The faults happen in a TCP proxy, or by signals to
 * servers and workers. The checker (faults/checker.mjs) reads the files and shares no code with what it checks.
 */

import { parseArgs } from 'node:util';
import { isToWrite, loadLine, machineLine, madeBy, table, writeFigures } from '../report.mjs';
import { permitsOf } from './faults/checker.mjs';
import { Rig } from './faults/rig.mjs';
import { EXIT_BOUND, SCENARIOS } from './faults/scenarios.mjs';

/** A run that takes longer hangs: it ends with an error, and so do its processes. */
const MAX_RUN_MS = 90_000;

/** Rounding error of sums of rates. */
const EPSILON = 1e-9;

const HELP = `Plays faults against real servers and real processes, and compares the damage with its bound.

    npm run soak:faults                              all scenarios
    npm run soak:faults -- --only NAME[,NAME]        these, or those whose names begin like this: --only give-back
    npm run soak:faults -- --runs 8                  each so often; default: as often as a scenario says
    npm run soak:faults -- --seed 7                  the same random numbers again; the seed of a run is printed
    npm run soak:faults -- --list                    the names as JSON, one line
    npm run soak:faults -- --json                    results as JSON instead of the table
    npm run soak:faults -- --write                   also write the table into docs/explanation/guarantees.md, if all hold

Exit code 0: every figure is within its bound. 1: a violation, or a run failed. 2: a mistake in the options.

Read the table so: "worst seen" is the worst figure of all runs. All figures are certain: a call counts in a span
only if call and reply lie in it, so a slow machine hides violations but invents none. Exceptions are figures
in ms and unused shares, which a busy machine makes worse: run such a scenario again, alone, before you believe it.

To look closer: --only NAME --runs 20 --seed N. A new scenario is an entry of bench/soak/faults/scenarios.mjs.

`;

/** Seeded random numbers in [0, 1): mulberry32. */
function seeded(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const figureText = (value = Infinity, unit = '') => {
  if (!Number.isFinite(value)) return 'never';
  if (unit === 'of the rate') return `${(100 * value).toFixed(1)} %`;
  return `${Number.isInteger(value) ? value : value.toFixed(1)} ${unit}`.trim();
};

const boundText = ({ name, bound, unit, reason }) =>
  `${name} ≤ ${figureText(bound, unit)}: ${reason}`;

function helpText() {
  const lines = SCENARIOS.flatMap(({ name, title, bounds }) => [
    `  ${name}: ${title}`,
    ...bounds.map((each) => `      ${boundText(each)}`),
  ]);
  return `${HELP}Wherever workers are closed: ${boundText(EXIT_BOUND)}.

Scenarios, with what each may cost at most and why:

${lines.join('\n')}`;
}

class UsageError extends Error {}

function readOptions() {
  const text = { type: 'string' };
  const flag = { type: 'boolean', default: false };
  const { values } = parseArgs({
    options: {
      ...{ only: text, runs: text, seed: text },
      ...{ json: flag, list: flag, help: flag, write: flag },
    },
  });
  const natural = (name, fallback) => {
    const given = values[name];
    if (given === undefined) return fallback;
    if (!/^[1-9]\d{0,8}$/.test(given))
      throw new UsageError(`expected --${name} to be a whole number from 1, got "${given}"`);
    return Number(given);
  };
  const wanted = values.only?.split(',') ?? [''];
  const names = SCENARIOS.map(({ name }) => name);
  const unknown = wanted.find((word) => !names.some((name) => name.startsWith(word)));
  if (unknown !== undefined)
    throw new UsageError(`expected --only to name ${names.join(', ')}, got "${unknown}"`);
  return {
    ...values,
    runs: natural('runs'),
    seed: natural('seed', 1 + Math.floor(Math.random() * 1e6)),
    scenarios: SCENARIOS.filter(({ name }) => wanted.some((word) => name.startsWith(word))),
  };
}

/** One run: the figures by name, and how many permits there were. */
async function runOnce(scenario, random) {
  const rig = new Rig();
  let timer;
  const late = new Promise((_, reject) => {
    const fail = () => reject(new Error(`not over after ${MAX_RUN_MS} ms`));
    timer = setTimeout(fail, MAX_RUN_MS);
  });
  try {
    const figures = await Promise.race([scenario.run(rig, random), late]);
    const exits = rig.exits.map(({ ms, code }) => (code === 0 ? ms : Infinity));
    const permits = permitsOf(rig.calls()).length;
    if (permits < scenario.minPermits)
      throw new Error(`${permits} permits of at least ${scenario.minPermits}: nothing was tested`);
    return { figures: { ...figures, 'exit after close': Math.max(0, ...exits) }, permits };
  } finally {
    clearTimeout(timer);
    await rig.end();
  }
}

/** Runs a scenario several times; the first run that fails is the last. */
async function runScenario(scenario, { runs = scenario.runs, seed }, log) {
  const bounds = [...scenario.bounds, ...(scenario.hasNoClose ? [] : [EXIT_BOUND])];
  const results = [];
  for (let run = 0; run < runs; run++) {
    const since = performance.now();
    const result = await runOnce(scenario, seeded(seed + run)).catch(({ message }) => ({
      failure: message,
    }));
    const seen = bounds.map(
      ({ name, unit }) => `${name} ${figureText(result.figures?.[name], unit)}`,
    );
    const seconds = ((performance.now() - since) / 1000).toFixed(1);
    const what = result.failure ?? seen.join(', ');
    log(`${scenario.name}, run ${run + 1} of ${runs}, ${seconds} s: ${what}`);
    if (result.failure)
      return bounds.map((bound) => judge(scenario, bound, results, result.failure));
    results.push(result);
  }
  return bounds.map((bound) => judge(scenario, bound, results));
}

/** One row of the table: a figure over all runs, beside its bound. */
function judge({ name, title }, { name: figure, bound, unit, reason }, results, failure) {
  const seen = results.map(({ figures }) => figures[figure]);
  const violations = seen.filter((value) => !(value <= bound + EPSILON)).length;
  const holds = failure === undefined && violations === 0;
  return {
    ...{ name, title, figure, bound, unit, reason, violations, holds },
    runs: seen.length,
    permits: results.reduce((sum, { permits }) => sum + permits, 0),
    worst: failure === undefined ? Math.max(...seen) : Infinity,
    verdict: holds ? 'holds' : failure ? `FAILED: ${failure}` : 'VIOLATED',
  };
}

const COLUMNS = {
  scenario: ({ name }) => name,
  figure: ({ figure }) => figure,
  runs: ({ runs }) => runs,
  permits: ({ permits }) => permits,
  bound: ({ bound, unit }) => figureText(bound, unit),
  'worst seen': ({ worst, unit }) => figureText(worst, unit),
  verdict: ({ verdict, violations, runs }) =>
    violations > 0 ? `${verdict} in ${violations} of ${runs}` : verdict,
};

async function main() {
  const options = readOptions();
  if (options.help || options.list) {
    console.log(options.help ? helpText() : JSON.stringify(SCENARIOS.map(({ name }) => name)));
    return 0;
  }
  const writes = isToWrite(options.only === undefined && options.runs === undefined);
  const log = (text) =>
    console.error(`${(performance.now() / 1000).toFixed(0).padStart(4)} s  ${text}`);
  log(`${options.scenarios.length} scenarios, --seed ${options.seed}`);
  const results = [];
  for (const scenario of options.scenarios)
    results.push(...(await runScenario(scenario, options, log)));
  const holds = results.every((each) => each.holds);
  const head = `${machineLine()}, ${loadLine()}, --seed ${options.seed}`;
  console.log(options.json ? JSON.stringify(results) : `${head}\n\n${table(COLUMNS, results)}`);
  if (writes && holds) {
    const made = madeBy('npm run soak:faults', loadLine(), `--seed ${options.seed}`);
    writeFigures(
      'docs/explanation/guarantees.md',
      'faults',
      `${table(COLUMNS, results)}\n\n${made}`,
    );
  }
  return holds ? 0 : 1;
}

// A rig is cleared on exit, so signals must exit, too.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));

try {
  process.exitCode = await main();
} catch (error) {
  if (!(error instanceof UsageError) && !error.code?.startsWith?.('ERR_PARSE_ARGS')) throw error;
  console.error(`${error.message}; --help explains all options`);
  process.exitCode = 2;
}
