/**
 * Time to import the package's entries and to start the command, each in fresh processes, beside bare Node.
 *
 *     npm run bench:start                medians of 21 rounds
 *     npm run bench:start -- --smoke     one round
 *     npm run bench:start -- --write     also writes the table into bench/RESULTS.md
 *
 * An import is timed inside the process, by the clock and by its CPU time. The first import of any file loads parts of
 * Node, so the goal is for the CPU time over that of an empty file. Rounds alternate between the rows, so that load of
 * the machine meets all. Node 22.8 and later also import with a compile cache, filled by a first import.
 */

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import module from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { startDaemon } from './daemon/process.mjs';
import { isToWrite, loadLine, madeBy, median, table, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const writes = isToWrite(!smoke);
const ROUNDS = smoke ? 1 : 21;

const folder = mkdtempSync(join(tmpdir(), 'sluice-start-'));
const empty = join(folder, 'empty.mjs');
writeFileSync(empty, 'export {};\n');

const run = (args, variables) =>
  execFileSync(process.execPath, args, {
    encoding: 'utf8',
    env: { ...process.env, ...variables },
  });

/** Imports `specifier` in a new process. */
function importTimes(specifier, variables) {
  const program = `
    const from = performance.now();
    const cpu = process.cpuUsage();
    await import(${JSON.stringify(specifier)});
    const { user, system } = process.cpuUsage(cpu);
    console.log(JSON.stringify({ ms: performance.now() - from, cpuMs: (user + system) / 1000 }));`;
  return JSON.parse(run(['--input-type=module', '-e', program], variables));
}

/** Runs a command until it exits. */
function runTime(...args) {
  const from = performance.now();
  run(args);
  return { ms: performance.now() - from };
}

/** Starts the daemon until it says that it is ready. */
async function serveTime() {
  const any = '127.0.0.1:0';
  const listen = ['--line', any, '--resp', any, '--http', any];
  const from = performance.now();
  const daemon = await startDaemon(['--rate', '100/s', ...listen], { log: 'ignore' });
  const ms = performance.now() - from;
  await daemon.stop();
  return { ms };
}

const cached = { NODE_COMPILE_CACHE: join(folder, 'compile-cache') };
const hasCompileCache = module.enableCompileCache !== undefined;
if (hasCompileCache) importTimes('sluice', cached);

const CASES = [
  { name: 'import an empty file', measure: () => importTimes(pathToFileURL(empty).href) },
  { name: 'import `sluice`', goalMs: 6, measure: () => importTimes('sluice') },
  ...(hasCompileCache
    ? [
        {
          name: 'import `sluice`, compile cache',
          goalMs: 6,
          measure: () => importTimes('sluice', cached),
        },
      ]
    : []),
  { name: 'import `sluice/small`', measure: () => importTimes('sluice/small') },
  { name: 'import `sluice/redis`', measure: () => importTimes('sluice/redis') },
  { name: '`node -e 0`, until it exits', measure: () => runTime('-e', '0') },
  {
    name: '`sluice --help`, until it exits',
    goalMs: 120,
    measure: () => runTime('dist/bin/sluice.js', '--help'),
  },
  { name: '`sluice serve`, until it is ready', measure: serveTime },
];

const results = CASES.map((own) => ({ ...own, rounds: [] }));
for (let round = 0; round < ROUNDS; round++)
  for (const { measure, rounds } of results) rounds.push(await measure());
rmSync(folder, { recursive: true });

const millis = (value) => `${value.toFixed(1)} ms`;
const medianCpu = ({ rounds }) => median(rounds.map(({ cpuMs }) => cpuMs));
const isImport = ({ rounds }) => rounds[0].cpuMs !== undefined;
const [emptyFile] = results;
const columns = {
  start: ({ name }) => name,
  median: ({ rounds }) => millis(median(rounds.map(({ ms }) => ms))),
  fastest: ({ rounds }) => millis(Math.min(...rounds.map(({ ms }) => ms))),
  'CPU time, median': (row) => (isImport(row) ? millis(medianCpu(row)) : ''),
  'over an empty file': (row) =>
    isImport(row) && row !== emptyFile ? millis(medianCpu(row) - medianCpu(emptyFile)) : '',
  goal: ({ goalMs }) => (goalMs === undefined ? '' : `≤ ${goalMs} ms`),
};
const text = `${table(columns, results, ['---', ...Array(5).fill('---:')])}

${madeBy('npm run bench:start -- --write', `medians of ${ROUNDS} rounds`, loadLine())}`;
console.log(text);
if (writes) writeSection('Start times', text);
