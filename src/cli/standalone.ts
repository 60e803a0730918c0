#!/usr/bin/env node
/**
 * The one-file build: command, worker process and loading thread are the same file. How it was started tells which one
 * it is.
 */

import { isMainThread } from 'node:worker_threads';
import { WORKER_ARGUMENT } from '../daemon/files/built-files.ts';

const isWorker = process.argv[2] === WORKER_ARGUMENT && process.send !== undefined;

if (!isMainThread) void import('../daemon/config/load-worker.ts');
else if (isWorker) void import('../daemon/workers/worker.ts');
else void import('./main.ts');
