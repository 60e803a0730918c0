/**
 * A retry budget in a real outage: an HTTP server in its own process stops for a while, and its clients time out and retry.
 *
 * The server has a capacity and a queue, and serves requests whose clients have given up, as most servers do. Attempts are
 * counted, not timed. After the outage the clients must be served again; with retries of all calls they are more than the
 * server can take, and its queue stays full.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { throttleFetch } from '../src/adapters/fetch.ts';
import type { RetryOptions } from '../src/throttle/retry.ts';

/** Requests a second that the server serves, and that clients call; their time-out. */
const [CAPACITY, LOAD, TIMEOUT_MS] = [150, 60, 600];

/** Serves by the clock, so late timers cost no capacity; what it cannot use within 100 ms is lost. */
const SERVER = `
import { createServer } from 'node:http';
const queue = [];
let credit = 0, at = performance.now();
setInterval(() => {
  const now = performance.now();
  credit = Math.min(credit + ((now - at) / 1000) * ${CAPACITY}, ${CAPACITY / 10});
  at = now;
  for (; credit >= 1 && queue.length > 0; credit--) queue.shift().end('ok');
}, 2);
createServer((request, response) => queue.push(response)).listen(0, '127.0.0.1', function () {
  process.stdout.write(this.address().port + '\\n');
});
`;

describe('retry budget in a real outage', () => {
  const servers: ChildProcess[] = [];
  afterEach(() => {
    for (const server of servers.splice(0)) server.kill('SIGKILL');
  });

  async function startServer(): Promise<{ server: ChildProcess; url: string }> {
    const server = spawn(process.execPath, ['--input-type=module', '--eval', SERVER]);
    servers.push(server);
    const [port] = await once(server.stdout as NodeJS.ReadableStream, 'data');
    return { server, url: `http://127.0.0.1:${String(port).trim()}/` };
  }

  /** Calls at a steady rate, whatever becomes of them, until it is told to end. */
  function startCalls(url: string, retry: RetryOptions) {
    const counts = { calls: 0, attempts: 0, failed: 0, goodInARow: 0 };
    const attempt: typeof fetch = async (input) => {
      counts.attempts++;
      const response = await fetch(input, { signal: AbortSignal.timeout(TIMEOUT_MS) });
      await response.text();
      return response;
    };
    const call = throttleFetch(attempt, { limit: { bucket: { rate: 1e6 } }, retry });
    const timer = setInterval(() => {
      counts.calls++;
      call(url).then(
        () => counts.goodInARow++,
        () => {
          counts.failed++;
          counts.goodInARow = 0;
        },
      );
    }, 1000 / LOAD);
    return { counts, end: () => clearInterval(timer) };
  }

  test('at most 1.1 attempts a call, and all calls succeed again after it; without a budget several attempts', async () => {
    const withBudget = await startServer();
    const without = await startServer();
    const bounded = startCalls(withBudget.url, { budget: 0.1, minPerSecond: 0 });
    const unbounded = startCalls(without.url, { budget: false });
    const all = [bounded, unbounded];
    const inTime = { timeout: 30_000, interval: 20 };
    await vi.waitFor(() => expect(bounded.counts.goodInARow).toBeGreaterThan(LOAD / 2), inTime);
    for (const { server } of [withBudget, without]) server.kill('SIGSTOP');
    await vi.waitFor(() => expect(bounded.counts.failed).toBeGreaterThan(LOAD), inTime);
    for (const { server } of [withBudget, without]) server.kill('SIGCONT');
    // A second of calls without a failure: the overload has not outlasted its cause.
    await vi.waitFor(() => expect(bounded.counts.goodInARow).toBeGreaterThan(LOAD), inTime);
    for (const { end } of all) end();
    const [amplification, withoutBudget] = all.map(({ counts }) => counts.attempts / counts.calls);
    expect(amplification).toBeLessThanOrEqual(1.1);
    expect(withoutBudget).toBeGreaterThan(1.5);
  }, 60_000);
});
