/**
 * Loads the configuration in a thread of its own: parsing ten thousand overrides takes a second, during which the
 * daemon would not answer. The thread (load-worker.ts) reads, parses and validates. Its long lists come back ready for
 * use (read-lists.ts). Its other values come as plain data, one part on request. This thread makes limits of them in
 * slices. A small file needs no thread: starting one takes longer than parsing it.
 */

import type { BackendModule } from '../../backends/daemon-backend.ts';
import { type Millis, schedule, systemClock } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { nextTurn, runInSlices } from '../../core/steps.ts';
import { isBuilt, startLoadThread } from '../files/built-files.ts';
import { readRegularFile, requireRegularFile } from '../keys/text-file.ts';
import {
  type ConfigOverride,
  type LoadResult,
  loadConfigInSteps,
  type PlainConfig,
  readPlainConfig,
} from './file.ts';
import { addPart, type PlainPart } from './plain-parts.ts';
import { type ListsData, ReadLists } from './read-lists.ts';

/** A file system that does not answer must not block later reloads. On a busy host a long list takes minutes. */
const DEADLINE_MS: Millis = 300_000;

const MAX_SMALL_BYTES = 1024;

export interface LoadTask {
  readonly file: string | undefined;
  readonly overrides: readonly ConfigOverride[];
}

type Problems = { readonly problems: readonly string[] };
type Loaded = { readonly plain: PlainConfig; readonly lists: ListsData } | Problems;

/** The messages of the thread: one part for each message that it gets, then the lists. */
export type LoadReply = { readonly part: PlainPart } | { readonly lists: ListsData } | Problems;

/** `loadConfig` for a reload: without a pause, with the backends of this package. */
export async function loadInThread(
  file: string | undefined,
  overrides: readonly ConfigOverride[],
  modules: readonly BackendModule[],
): Promise<LoadResult> {
  const problem = file === undefined ? undefined : whyNotRead(file);
  if (problem !== undefined) return { problems: [problem] };
  // Sources that are not compiled cannot be loaded by a thread.
  const needsThread = isBuilt && file !== undefined && !isSmall(file);
  if (!needsThread) return runInSlices(loadConfigInSteps(file, overrides, modules));
  await nextTurn(); // starting a thread takes some milliseconds
  const loaded = await runThread({ file, overrides }).catch(
    (error: unknown): Loaded => ({ problems: [`cannot load: ${errorMessageOf(error)}`] }),
  );
  if ('problems' in loaded) return loaded;
  return runInSlices(readPlainConfig(loaded.plain, modules, new ReadLists(loaded.lists)));
}

/** A pipe has no second text: its reader would block all reloads. */
function whyNotRead(file: string): string | undefined {
  try {
    requireRegularFile(file);
    return undefined;
  } catch (error) {
    return `cannot read ${file}: ${errorMessageOf(error)}`;
  }
}

/** True for a file that is parsed within some milliseconds. One that names others is not. */
function isSmall(file: string): boolean {
  try {
    return !/include|file:/i.test(readRegularFile(file, MAX_SMALL_BYTES));
  } catch {
    return false; // too large, or to be reported by the thread
  }
}

async function runThread(task: LoadTask): Promise<Loaded> {
  const worker = startLoadThread(task);
  const loaded = await receive(worker).catch((error: unknown) => {
    void worker.terminate(); // it may never end: it reads a file system that does not answer
    throw error;
  });
  // The thread returns its memory to the system. A thread that needs memory meanwhile has to wait, so this one does
  // nothing but answer checks until then.
  await worker.terminate();
  return loaded;
}

function receive(worker: ReturnType<typeof startLoadThread>): Promise<Loaded> {
  return new Promise((resolve, reject) => {
    const fail = (): void => reject(new Error(`it took longer than ${DEADLINE_MS} ms`));
    const cancel = schedule(systemClock, systemClock.now() + DEADLINE_MS, fail, false);
    const plain = {};
    worker.on('message', (reply: LoadReply) => {
      if ('problems' in reply) resolve(reply);
      else if ('lists' in reply) resolve({ plain: plain as PlainConfig, lists: reply.lists });
      else {
        addPart(plain, reply.part);
        worker.postMessage('next');
      }
    });
    worker.once('error', reject);
    worker.once('exit', () => {
      cancel();
      reject(new Error('its thread has ended'));
    });
  });
}
