/**
 * Compares the speed of this checkout with a commit: `npm run bench:compare -- --help`.
 *
 *     for each group: for each round: start both builds; for each row: BASE, this checkout, this checkout, BASE
 *
 * Servers and processes are started anew in every round, so that the spread includes what differs from process to process,
 * such as the moment at which code is compiled.
 */

import { availableParallelism, loadavg } from 'node:os';
import { fileURLToPath } from 'node:url';
import { loadLine, machineLine, table, writeSection } from '../report.mjs';
import { HELP, readArguments, UsageError } from './arguments.mjs';
import { build, buildCommit, commitOf } from './base.mjs';
import { generatorOf } from './generators.mjs';
import { startProgress } from './progress.mjs';
import * as daemon from './rows-daemon.mjs';
import * as http from './rows-http.mjs';
import * as local from './rows-local.mjs';
import * as redis from './rows-redis.mjs';
import { CONFIDENCE, compareRow, MIN_RATIO, meanOf, orderOf } from './statistics.mjs';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const GROUPS = { local, daemon, redis, http };
const ROUNDS = { short: 5, full: 11 };

/** The highest load for each core at which the table is written. */
const MAX_LOAD = 1;

/** What to undo at the end, the last one first. */
const deferred = [];
const defer = (undo) => deferred.push(undo);
async function undoAll() {
  while (deferred.length > 0) await deferred.pop()();
}

/** A build without the group, such as a commit before it was added, has no rows. */
async function openBuild(open, build) {
  try {
    return await open(build);
  } catch (error) {
    if (build.name === 'own') throw error;
    const measure = () => {
      throw error;
    };
    return { measure, close() {} };
  }
}

/** Undefined if BASE lacks the row: it says so, or its first measurement fails. */
async function measureRow({ row, pairs }, build, target, ms) {
  try {
    const figures = await target.measure(row, ms);
    if (figures === undefined) throw new Error('the row is unknown');
    return figures;
  } catch (error) {
    if (build.name === 'own' || pairs.length > 0) throw error;
    console.error(`${row.name} is not in ${build.title}: ${error.message}`);
    return undefined;
  }
}

/** The measurements of one group: pairs of both builds by row. */
async function measureGroup({ name, group, rows }, builds, { form, progress }) {
  const open = await group.prepare(defer);
  if (open === undefined) return rows.map((row) => ({ row, pairs: [], isLeftOut: true }));
  const results = rows.map((row) => ({ row, pairs: [], isMissing: false }));
  for (let round = 1; round <= ROUNDS[form]; round++) {
    const targets = {};
    for (const build of builds) {
      const target = await openBuild(open, build);
      targets[build.name] = target;
      defer(() => target.close());
    }
    for (const result of results) {
      if (result.isMissing) continue;
      const { row } = result;
      const turns = { base: [], own: [] };
      for (const build of orderOf(builds, round, row.turns)) {
        if (turns.base.includes(undefined)) continue;
        progress.show(name, round, `${row.name}, ${build.title}`);
        const ms = group.spanMs[form] / (row.turns ?? 1);
        turns[build.name].push(await measureRow(result, build, targets[build.name], ms));
        progress.add(name, 1 / (row.turns ?? 1));
      }
      result.isMissing = turns.base.includes(undefined);
      if (!result.isMissing)
        result.pairs.push({ base: meanOf(turns.base), own: meanOf(turns.own) });
    }
    for (const _ of builds) await deferred.pop()();
  }
  return results;
}

const ratioText = ({ median, low, high }) =>
  `${median.toFixed(2)} (${low.toFixed(2)} to ${high.toFixed(2)})`;
const microsText = (value) => `${value.toFixed(value < 10 ? 3 : 1)} µs`;
const isSlow = ({ load }) => load !== undefined && generatorOf(load.kind).isSlow === true;

const COLUMNS = {
  group: ({ group }) => group,
  row: ({ row }) => `${row.name}${isSlow(row) ? ' *' : ''}`,
  ratio: ({ ratio }) => (ratio ? ratioText(ratio) : ''),
  throughput: ({ throughput }) => (throughput ? ratioText(throughput) : ''),
  'CPU per call: BASE': ({ baseUs }) => (baseUs ? microsText(baseUs) : ''),
  'this checkout': ({ ownUs }) => (ownUs ? microsText(ownUs) : ''),
  verdict: ({ verdict }) => verdict,
};

function report(results, form) {
  const rules = ['---', '---', ...Array(4).fill('---:'), '---'];
  const note = results.some(({ row }) => isSlow(row))
    ? '\n\n\\* with bench/daemon/load.mjs, which needs as much CPU as the server'
    : '';
  return `${table(COLUMNS, results, rules)}${note}

Ratio: CPU time per call in BASE divided by that of this checkout, above 1 is faster; throughput: calls per second of
this checkout divided by those of BASE. Medians of ${ROUNDS[form]} rounds with a confidence interval of ${CONFIDENCE * 100} %. A row is slower if
its interval is below ${MIN_RATIO}. ${machineLine()}, ${loadLine()}.`;
}

async function compare({ base, groups, rows: text, isShort, isToWrite }) {
  const form = isShort ? 'short' : 'full';
  const commit = commitOf(ROOT, base);
  const selected = groups
    .map((name) => ({ name, group: GROUPS[name] }))
    .map((one) => ({ ...one, rows: one.group.rows.filter(({ name }) => name.includes(text)) }))
    .filter(({ rows }) => rows.length > 0);
  if (selected.length === 0)
    throw new UsageError(`expected --rows with a part of a name, got "${text}"`);
  const cores = availableParallelism();
  const isBusy = loadavg()[0] > MAX_LOAD * cores;
  if (isBusy)
    console.error(
      `the load of the machine is ${loadavg()[0].toFixed(1)} on ${cores} cores: the table will be printed, not written`,
    );
  const progress = startProgress(selected, ROUNDS[form]);
  progress.say('building this checkout');
  await build(ROOT, defer);
  const folder = await buildCommit(ROOT, commit, { defer, say: progress.say });
  const builds = [
    { name: 'base', title: commit.slice(0, 7), folder },
    { name: 'own', title: 'this checkout', folder: ROOT },
  ];
  progress.start();
  const results = [];
  for (const one of selected) {
    const measured = await measureGroup(one, builds, { form, progress });
    for (const { row, pairs, isLeftOut } of measured) {
      const figures = isLeftOut ? { verdict: 'left out' } : compareRow(pairs);
      results.push({ group: one.name, row, ...figures });
    }
  }
  progress.end();
  const page = report(results, form);
  console.log(`Compared with ${base} (${commit.slice(0, 7)})\n\n${page}`);
  if (isToWrite && !isBusy)
    writeSection(
      `Compared with ${base}`,
      `\`npm run bench:compare -- ${base} --write\`\n\n${page}`,
    );
  const slower = results.filter(({ verdict }) => verdict === 'slower');
  for (const { group, row, ratio } of slower)
    console.error(`slower: ${group}, ${row.name}: ${ratioText(ratio)}`);
  return slower.length > 0 ? 1 : 0;
}

for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
])
  process.once(signal, () => undoAll().finally(() => process.exit(code)));

try {
  process.chdir(ROOT); // startDaemon and load.mjs use paths of the checkout
  const options = readArguments(process.argv.slice(2));
  if (options.isHelp) console.log(HELP);
  else process.exitCode = await compare(options);
} catch (error) {
  console.error(error instanceof UsageError ? error.message : error);
  process.exitCode = 2;
} finally {
  await undoAll();
}
