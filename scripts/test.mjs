/**
 * Runs the tests of a tier: installs what is missing, and says so; builds; starts vitest.
 *
 * A file of the system tier that fails runs once more, alone; a file of either tier whose worker hung does so, too. Both
 * outcomes are printed, and `--record` counts them.
 */

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { disturb } from '../test/setup/disturb.mjs';
import { recordDurations } from '../test/setup/durations.mjs';
import { commandOf, TOOLS } from '../test/setup/tools.mjs';

const HELP = `npm test                      everything that does not depend on the speed of the machine
npm run test:system           browsers, gateways, other runtimes, clusters, killed processes, soaks
npm test -- src/policies      files whose path contains this; options of vitest, such as -t, are passed on
npm test -- --record          also writes the durations into test/durations.json and test/README.md
npm test -- --busy 4          with four busy loops beside it
npm test -- --stalls          suspends a random process of the run for up to 0.5 s, over and over

Both install missing servers with apt-get when run as root. test/README.md explains the two tiers.`;

/** The factor of the system tier: test/support/runs.ts. */
const RUNS = '4';

const words = process.argv.slice(2);
const take = (flag) => words.includes(flag) && words.splice(words.indexOf(flag), 1).length > 0;
const isSystem = take('--system');
const isToRecord = take('--record');
const hasStalls = take('--stalls');
const busy = words.includes('--busy') ? Number(words.splice(words.indexOf('--busy'), 2)[1]) : 0;
const isWhole = words.length === 0;
const isDisturbed = hasStalls || busy > 0;

if (take('--help')) {
  console.log(HELP);
  process.exit(0);
}
if (isToRecord && (!isWhole || isDisturbed))
  fail('expected a whole, undisturbed run with --record');
if (!Number.isInteger(busy)) fail('expected a number of busy loops after --busy');

const startedAt = performance.now();
const seconds = () => (performance.now() - startedAt) / 1000;
installTools();
if (isSystem) installPackages('test/runtimes');
const built = run('npm', ['run', '--silent', 'build']);
if (built !== 0) process.exit(built);
console.log(`Set-up took ${seconds().toFixed(0)} s.`);

const endDisturbance = disturb({ busy, hasStalls });
const first = runVitest(words);
const failed = first.files.filter(({ hasFailed }) => hasFailed);
const toRepeat = isSystem ? failed : failed.filter(({ hasEnded }) => !hasEnded);
const second = toRepeat.map(({ file }) => runAgain(file));
const passedAgain = second.filter(({ hasFailed }) => !hasFailed);
const isMended = failed.length > 0 && passedAgain.length === failed.length && first.errors === 0;
let code = isMended ? 0 : first.code;
if (isSystem && isWhole) code = testNewestNode() || testRandomRuns() || code;
endDisturbance();

for (const { file, hasFailed } of second)
  console.log(`${file}: failed, then alone ${hasFailed ? 'failed again' : 'passed'}`);
console.log(`${isSystem ? 'test:system' : 'test'} took ${seconds().toFixed(0)} s in all.`);
if (isToRecord && code === 0)
  recordDurations(isSystem ? 'system' : 'basic', seconds(), first.files, passedAgain);
process.exit(code);

function fail(message) {
  console.error(message);
  process.exit(2);
}

function run(command, args, env = {}) {
  return (
    spawnSync(command, args, { stdio: 'inherit', env: { ...process.env, ...env } }).status ?? 1
  );
}

/** Names each missing program, and installs its package if this user may. */
function installTools() {
  const missing = Object.keys(TOOLS)
    .filter((name) => isSystem || TOOLS[name].tier === 'basic')
    .filter((name) => commandOf(name) === undefined)
    .map((name) => TOOLS[name]);
  if (missing.length === 0) return;
  const packs = missing.map(({ pack }) => pack);
  const install = `apt-get install -y --no-install-recommends ${packs.join(' ')}`;
  console.log(`Missing: ${missing.map(({ what, pack }) => `${what} (${pack})`).join(', ')}.`);
  if (process.getuid?.() !== 0 || !existsSync('/usr/bin/apt-get')) {
    console.log(`Their tests are skipped. To install them: sudo ${install}`);
    return;
  }
  console.log(`Installing: ${install}`);
  // A package must not start its server: tests start their own.
  const quiet = { DEBIAN_FRONTEND: 'noninteractive', RUNLEVEL: '1' };
  run('apt-get', ['update', '-qq'], quiet);
  const keepFiles = ['-qq', '-o', 'Dpkg::Options::=--force-confold'];
  run('apt-get', [...install.split(' ').slice(1), ...keepFiles], quiet);
}

/** The packages of a folder that only this tier uses. */
function installPackages(folder) {
  if (existsSync(join(folder, 'node_modules'))) return;
  console.log(`Installing the packages of ${folder}: npm ci --prefix ${folder}`);
  run('npm', ['ci', '--prefix', folder]);
}

function runVitest(args) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-tests-'));
  const file = join(folder, 'results.json');
  const config = isSystem ? ['--config', 'vitest.system.config.ts'] : [];
  const code = run('npx', ['vitest', 'run', ...config, ...args], { SLUICE_TEST_RESULTS: file });
  const none = { files: [], errors: 0 };
  const results = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : none;
  rmSync(folder, { recursive: true, force: true });
  return { code, ...results };
}

/** Alone, so that no other file takes its time. */
function runAgain(file) {
  console.log(`\n${file} failed. It runs once more, alone.`);
  const { code } = runVitest([file]);
  return { file, hasFailed: code !== 0 };
}

/** The fast path uses a private field of Node's sockets: it must work, or fall back, on the newest Node. */
function testNewestNode() {
  installPackages('test/newest-node');
  console.log('\nThe servers of the daemon on the newest Node:');
  const node = 'test/newest-node/node_modules/.bin/node';
  const servers = ['src/daemon/server', 'src/daemon/protocols/http/server'];
  return run(node, ['node_modules/vitest/vitest.mjs', 'run', ...servers]);
}

/**
 * Tests of random sequences, seeds and inputs, with more of them than `npm test` has; and code blocks of the docs, whose
 * programs are all installed now.
 */
function testRandomRuns() {
  const search = ['grep', '-l', 'support/runs.ts', '--', '*.test.ts'];
  const random = spawnSync('git', search, { encoding: 'utf8' }).stdout.trim().split('\n');
  const files = [...random, 'test/snippets.test.ts'];
  console.log(`\nRandom tests with ${RUNS} times the runs: ${files.join(' ')}`);
  return run('npx', ['vitest', 'run', ...files], { RUNS });
}
