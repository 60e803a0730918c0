/** Runs before each test file: timeouts for a loaded machine, and the state of the machine with each failure. */

import { loadavg } from 'node:os';
import { afterEach, beforeEach, vi } from 'vitest';
import { longestStallMs, realNow } from '../support/clock-watch.ts';
import { WAIT_TIMEOUT_MS } from '../support/wait-timeout.ts';

declare module 'vitest' {
  interface TaskMeta {
    machine?: { readonly load: number; readonly stallMs: number };
  }
}

const { waitFor } = vi;

/** With the timeout that `expect.poll` has from vitest.config.ts. */
vi.waitFor = (callback, options = {}) => {
  const chosen = typeof options === 'number' ? { timeout: options } : options;
  return waitFor(callback, { timeout: WAIT_TIMEOUT_MS, ...chosen });
};

const startedAt = new Map<string, number>();

beforeEach(({ task }) => {
  startedAt.set(task.id, realNow());
});

afterEach(({ task }) => {
  const since = startedAt.get(task.id) ?? 0;
  startedAt.delete(task.id);
  if (task.result?.state === 'fail')
    task.meta.machine = { load: loadavg()[0], stallMs: longestStallMs(since) };
});
