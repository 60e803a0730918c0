/**
 * Measures everything there is to measure, one thing after the other, and leaves every table written.
 *
 *     npm run figures                          two hours; the machine should have nothing else to do
 *     npm run figures -- --list                what that is
 *     npm run figures -- --only NAME[,NAME]    these only
 *     npm run figures -- --from NAME           that one and those after it
 *     npm run figures -- --dirty               although there are changes that no commit has
 *
 * A figure belongs to a commit: with changes outside docs/ and bench/RESULTS.md nothing begins. A step that fails leaves its
 * figures as they were; the others go on, and in the end it is told with its log. Exit code 1 then, 2 if nothing could begin.
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

/** What takes so much longer than it should is ended, first politely, so that it can tidy up. */
const boundMs = (minutes) => (4 * minutes + 5) * 60_000;
const POLITE_MS = 10_000;

class Refusal extends Error {}

/** Only what the figures themselves are written into may differ from the commit. */
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
  throw new Refusal(
    `a figure belongs to a commit, and these have changed: ${changed.join(', ')}; commit them, or say --dirty`,
  );
}

function chosen({ only, from }) {
  const names = STEPS.map(({ name }) => name);
  const wanted = only?.split(',') ?? names.slice(from === undefined ? 0 : names.indexOf(from));
  const unknown = [...wanted, from ?? names[0]].find((name) => !names.includes(name));
  if (unknown !== undefined)
    throw new Refusal(`no step "${unknown}": there are ${names.join(', ')}`);
  return STEPS.filter(({ name }) => wanted.includes(name));
}

/** The script's own words, without the build before them: that is done once for all. */
const commandOf = ({ script, words }) => {
  const [, ...own] = scripts[script].split(' && ').at(-1).split(' ');
  return [...own, ...words];
};

/** Runs one, and says why it failed, if it did. */
function play(step, log) {
  const out = createWriteStream(log);
  // A group of its own, so that whatever it started ends with it.
  const child = spawn(process.execPath, commandOf(step), {
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
      if (error.code !== 'ESRCH') throw error; // it is gone already
    }
  };
  let isLate = false;
  let last;
  const late = setTimeout(() => {
    isLate = true;
    end('SIGTERM');
    last = setTimeout(() => end('SIGKILL'), POLITE_MS);
  }, boundMs(step.minutes));
  const interrupted = () => {
    end('SIGTERM');
    process.exit(1);
  };
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, interrupted);
  return new Promise((resolve) => {
    const over = (why) => {
      clearTimeout(late);
      clearTimeout(last);
      for (const signal of ['SIGINT', 'SIGTERM']) process.off(signal, interrupted);
      out.end(() => resolve(why));
    };
    child.once('error', (error) => over(error.message));
    child.once('close', (code, signal) => {
      if (isLate) over(`not over after ${boundMs(step.minutes) / 60_000} min`);
      else over(code === 0 ? undefined : `ended with ${signal ?? `exit code ${code}`}`);
    });
  });
}

/** Says of a step when it was measured, and on which commit; the others keep their rows. */
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

async function playSteps(flags) {
  const steps = chosen(flags);
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
    const began = performance.now();
    const why = await play(step, log);
    const took = (performance.now() - began) / 60_000;
    // Written at once, so that a run that is broken off has told of what it did.
    const day = new Date().toISOString().slice(0, 10);
    if (why === undefined) writeStep({ name, minutes: took, commit, day });
    else failed.push(`${name} ${why}: ${log}`);
  }
  for (const line of failed) console.error(`FAILED: ${line}`);
  return failed.length > 0 ? 1 : 0;
}

try {
  const flag = { type: 'boolean', default: false };
  const text = { type: 'string' };
  const { values } = parseArgs({ options: { list: flag, dirty: flag, only: text, from: text } });
  process.exitCode = await playSteps(values);
} catch (error) {
  if (!(error instanceof Refusal) && !error.code?.startsWith?.('ERR_PARSE_ARGS')) throw error;
  console.error(error.message);
  process.exitCode = 2;
}
