/**
 * Runs all measurements one after the other and writes their tables.
 *
 *     npm run figures                          two hours, on an otherwise idle machine
 *     npm run figures -- --list                lists the steps
 *     npm run figures -- --only NAME[,NAME]    only these steps
 *     npm run figures -- --from NAME           this step and all after it
 *     npm run figures -- --dirty               with uncommitted changes
 *
 * Figures belong to a commit: with uncommitted changes outside docs/ and bench/RESULTS.md nothing starts. A step that
 * fails leaves its figures as they are, and the next step runs. Failures are listed at the end with their logs.
 * Exit code 1 if a step failed, 2 if nothing could start.
 */

import { execFileSync, spawn } from 'node:child_process';
import { createWriteStream, mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { madeBy, readFigures, row, writeFigures } from './report.mjs';
import { STEPS } from './steps.mjs';

const ROOT = fileURLToPath(new URL('../', import.meta.url));
const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));

/** The time limit of a step. After it, SIGTERM lets the step clean up; SIGKILL follows. */
const maxStepMs = (minutes) => (4 * minutes + 5) * 60_000;
const KILL_AFTER_MS = 10_000;

class UsageError extends Error {}

/** Only files that figures are written into may differ from the commit. */
const MAY_DIFFER = /^(docs\/|bench\/RESULTS\.md$)/;

function commitOf(isDirty) {
  const git = (...words) => execFileSync('git', words, { cwd: ROOT, encoding: 'utf8' });
  const changed = git('status', '--porcelain', '-uall')
    .split('\n')
    .map((line) => line.slice(3))
    .filter((path) => path !== '' && !MAY_DIFFER.test(path));
  const commit = git('rev-parse', '--short', 'HEAD').trim();
  if (changed.length === 0) return commit;
  if (isDirty) return `${commit} and changes`;
  throw new UsageError(
    `expected no uncommitted changes, because figures belong to a commit, got: ${changed.join(', ')}; commit them or add --dirty`,
  );
}

function selectSteps({ only, from }) {
  const names = STEPS.map(({ name }) => name);
  const wanted = only?.split(',') ?? names.slice(from === undefined ? 0 : names.indexOf(from));
  const unknown = [...wanted, from ?? names[0]].find((name) => !names.includes(name));
  if (unknown !== undefined)
    throw new UsageError(`expected a step of ${names.join(', ')}, got "${unknown}"`);
  return STEPS.filter(({ name }) => wanted.includes(name));
}

/** The arguments for `node`, without the build, which runs once for all steps. */
const argumentsOf = ({ script, words }) => {
  const [, ...own] = scripts[script].split(' && ').at(-1).split(' ');
  return [...own, ...words];
};

/** Runs a step. Resolves with the reason if it failed. */
function runStep(step, log) {
  const out = createWriteStream(log);
  // Its own process group, so that its child processes end with it.
  const child = spawn(process.execPath, argumentsOf(step), {
    cwd: ROOT,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.stdout.pipe(out, { end: false });
  child.stderr.pipe(out, { end: false });
  const end = (signal) => {
    try {
      process.kill(-child.pid, signal);
    } catch (error) {
      if (error.code !== 'ESRCH') throw error; // already ended
    }
  };
  let isTimedOut = false;
  let kill;
  const timeout = setTimeout(() => {
    isTimedOut = true;
    end('SIGTERM');
    kill = setTimeout(() => end('SIGKILL'), KILL_AFTER_MS);
  }, maxStepMs(step.minutes));
  const interrupted = () => {
    end('SIGTERM');
    process.exit(1);
  };
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, interrupted);
  return new Promise((resolve) => {
    const finish = (reason) => {
      clearTimeout(timeout);
      clearTimeout(kill);
      for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, interrupted);
      out.end(() => resolve(reason));
    };
    child.once('error', (error) => finish(error.message));
    child.once('close', (code, signal) => {
      if (isTimedOut) finish(`timed out after ${maxStepMs(step.minutes) / 60_000} min`);
      else finish(code === 0 ? undefined : `ended with ${signal ?? `exit code ${code}`}`);
    });
  });
}

/** Records commit and day of a step. The rows of other steps stay. */
function writeStep({ name, minutes, commit, day }) {
  const rows = new Map(
    [...readFigures('bench/RESULTS.md', 'run').matchAll(/^\| `([^`]+)` \|.*$/gm)].map(
      ([line, name]) => [name, line],
    ),
  );
  rows.set(name, row([`\`${name}\``, minutes.toFixed(1), commit, day]));
  const lines = STEPS.map((step) => rows.get(step.name)).filter((line) => line !== undefined);
  const head = [row(['step', 'minutes', 'commit', 'day']), row(['---', '---:', '---', '---'])];
  const text = [...head, ...lines].join('\n');
  writeFigures('bench/RESULTS.md', 'run', `${text}\n\n${madeBy('npm run figures')}`);
}

async function runSteps(flags) {
  const steps = selectSteps(flags);
  if (flags.list) {
    for (const { name, minutes } of steps) console.log(`${name.padEnd(20)} ${minutes} min`);
    return 0;
  }
  const commit = commitOf(flags.dirty);
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: ROOT, stdio: 'inherit' });
  const folder = mkdtempSync(join(tmpdir(), 'sluice-figures-'));
  const failed = [];
  for (const [n, step] of steps.entries()) {
    const { name, minutes } = step;
    console.error(`${n + 1} of ${steps.length}: ${name}, usually ${minutes} min`);
    const log = join(folder, `${name.replace(/[^\w-]+/g, '-')}.log`);
    const startedAt = performance.now();
    const failure = await runStep(step, log);
    const took = (performance.now() - startedAt) / 60_000;
    // Written after each step, so that an interrupted run keeps its results.
    const day = new Date().toISOString().slice(0, 10);
    if (failure === undefined) writeStep({ name, minutes: took, commit, day });
    else failed.push(`${name} ${failure}: ${log}`);
  }
  for (const line of failed) console.error(`FAILED: ${line}`);
  return failed.length > 0 ? 1 : 0;
}

try {
  const flag = { type: 'boolean', default: false };
  const text = { type: 'string' };
  const { values } = parseArgs({ options: { list: flag, dirty: flag, only: text, from: text } });
  process.exitCode = await runSteps(values);
} catch (error) {
  if (!(error instanceof UsageError) && !error.code?.startsWith?.('ERR_PARSE_ARGS')) throw error;
  console.error(error.message);
  process.exitCode = 2;
}
