/** The thread of `load-thread.ts`: loads the configuration, and sends it in parts, one for each message. */

import { constants, setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { loadConfig } from './file.ts';
import type { LoadReply, LoadTask } from './load-thread.ts';
import { splitPlain } from './plain-parts.ts';

// Checks come first. Elsewhere it would be the priority of the whole process.
if (process.platform === 'linux') setPriority(constants.priority.PRIORITY_LOW);
const { file, overrides } = workerData as LoadTask;
const loaded = loadConfig(file, overrides);
const replies: LoadReply[] =
  'problems' in loaded
    ? [loaded]
    : [...splitPlain(loaded.plain).map((part) => ({ part })), { done: true }];
const sendNext = (): void => parentPort?.postMessage(replies.shift());
parentPort?.on('message', sendNext);
sendNext();
