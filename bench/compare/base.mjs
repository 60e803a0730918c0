/**
 * Builds a commit in a folder of its own: temporary folder/commit, kept for later runs.
 *
 * The files come from `git archive`, so that no work tree remains registered. An unfinished build has another name and
 * is removed on errors and signals.
 */

import { execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { UsageError } from './arguments.mjs';

/** Built commits that are kept. */
const MAX_BUILDS = 4;
const MAX_OUTPUT_CHARS = 2000;
const COMMIT = /^[0-9a-f]{40}$/;

/** A folder of this user only: programs in it are executed. */
export function cacheFolder() {
  const folder = join(tmpdir(), `sluice-compare-${process.getuid()}`);
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const { uid, mode } = statSync(folder);
  if (uid !== process.getuid() || (mode & 0o022) !== 0)
    throw new Error(`expected ${folder} to be writable by this user only; remove it`);
  return folder;
}

export function commitOf(root, name) {
  try {
    const words = ['rev-parse', '--verify', '--quiet', '--end-of-options', `${name}^{commit}`];
    return execFileSync('git', words, { cwd: root, encoding: 'utf8' }).trim();
  } catch {
    throw new UsageError(`expected a commit or tag of this repository, got "${name}"`);
  }
}

/** The folder of a built commit. `defer` registers a function that runs at the end of the process. */
export async function buildCommit(root, commit, { defer, say }) {
  const folder = join(cacheFolder(), commit);
  if (existsSync(join(folder, 'node_modules', 'typescript'))) {
    utimesSync(folder, new Date(), new Date());
    return folder;
  }
  rmSync(folder, { recursive: true, force: true });
  const unfinished = `${folder}.${process.pid}`;
  defer(() => rmSync(unfinished, { recursive: true, force: true, maxRetries: 5 }));
  mkdirSync(unfinished);
  const files = `git archive ${commit} | tar -x -C "$0"`;
  await run('sh', ['-c', files, unfinished], root, defer);
  await install(root, unfinished, { defer, say });
  say(`building ${commit.slice(0, 7)}`);
  await build(unfinished, defer);
  removeOldBuilds();
  renameSync(unfinished, folder);
  return folder;
}

export const build = (folder, defer) => run('npm', ['run', '--silent', 'build'], folder, defer);

/** Packages of the lock file of the commit: those of this checkout where both files are equal. */
async function install(root, folder, { defer, say }) {
  const lockOf = (place) => readFileSync(join(place, 'package-lock.json'), 'utf8');
  if (lockOf(root) === lockOf(folder)) {
    symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
    return;
  }
  say('installing the packages of BASE, which has another package-lock.json');
  const words = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel', 'error'];
  await run('npm', words, folder, defer);
}

function removeOldBuilds() {
  const builds = readdirSync(cacheFolder())
    .filter((name) => COMMIT.test(name))
    .map((name) => join(cacheFolder(), name))
    .toSorted((a, b) => statSync(b).mtimeMs - statSync(a).mtimeMs);
  for (const folder of builds.slice(MAX_BUILDS - 1)) rmSync(folder, { recursive: true });
}

/** Runs a command in its own process group, so that its children end with it. */
function run(command, words, cwd, defer) {
  const child = spawn(command, words, {
    cwd,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let isRunning = true;
  defer(() => isRunning && process.kill(-child.pid, 'SIGKILL'));
  let output = '';
  const keep = (chunk) => {
    output = (output + chunk).slice(-MAX_OUTPUT_CHARS);
  };
  child.stdout.on('data', keep); // of the compiler
  child.stderr.on('data', keep);
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      isRunning = false;
      if (code === 0) resolve();
      else reject(new Error(`${command} ${words[0]} ended with ${signal ?? code}:\n${output}`));
    });
  });
}
