/**
 * The files of the built package that the daemon reads or starts.
 *
 *     form of the build     page and version      worker process and loading thread
 *     package               files                 scripts
 *     one file              in the file           the same file, which finds its role (cli/standalone.ts)
 *     executable            in the executable     the same executable; the thread runs the script inside it
 *
 * In a package their places are relative to this module. They hold for the module in dist/daemon/files and for a chunk
 * of the command's bundle in dist/bin/chunks.
 */

import { type ChildProcess, type ForkOptions, fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { getAsset, isSea } from 'node:sea';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { EMBEDDED } from './embedded.ts';

/** False where sources run as they are, such as in tests: nothing of this is there. */
export const isBuilt = !import.meta.url.endsWith('.ts');

/** The first argument of a worker process that runs the same file as the daemon. */
export const WORKER_ARGUMENT = '--worker-process';

/** The name of the script inside the executable. */
const SCRIPT_ASSET = 'sluice.cjs';

const inPackage = (path: string): URL => new URL(path, import.meta.url);

export const readVersion = (): string =>
  EMBEDDED?.version ?? JSON.parse(readFileSync(inPackage('../../../package.json'), 'utf8')).version;

/** A file of the page that browsers load; undefined if it is not built. */
export const readPageFile = async (name: string): Promise<string | undefined> =>
  EMBEDDED
    ? EMBEDDED.page[name]
    : readFile(new URL(name, inPackage('../../page/')), 'utf8').catch(() => undefined);

/** Starts the process that does the input and output of connections. */
export function forkWorker(options: ForkOptions): ChildProcess {
  if (EMBEDDED === undefined)
    return fork(fileURLToPath(inPackage('../workers/worker.js')), [], options);
  // `fork` runs the executable of this process, and its first argument is a script only if that is Node.
  if (isSea()) return fork(WORKER_ARGUMENT, [], options);
  return fork(fileURLToPath(import.meta.url), [WORKER_ARGUMENT], options);
}

/** Starts the thread that loads the configuration. */
export function startLoadThread(workerData: unknown): Worker {
  if (EMBEDDED === undefined)
    return new Worker(inPackage('../config/load-worker.js'), { workerData });
  if (isSea()) return new Worker(getAsset(SCRIPT_ASSET, 'utf8'), { eval: true, workerData });
  return new Worker(new URL(import.meta.url), { workerData });
}
