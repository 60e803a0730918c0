/** Traces requests with a debugger: one hash and one decision per request, and a bound on function entries. */

import { type ExecFileException, execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { folderCount } from './support/ratchet/counts.ts';
import { holdRatchet } from './support/ratchet/ratchet.ts';
import { redisServer } from './support/services.ts';

const run = promisify(execFile);

interface Entry {
  readonly file: string;
  readonly name: string;
  /** How many of these functions it is inside of. */
  readonly depth: number;
}

/** A watchdog: every function entry is a stop of the debugger, which a loaded machine makes slow. */
const MAX_TRACE_MS = 150_000;

/** The message of a failed command lacks its exit code, its signal and, without output, the cause. */
function explain(cause: ExecFileException & { stderr?: string }): never {
  const { killed, code, signal, stderr } = cause;
  const why = killed ? `not done within ${MAX_TRACE_MS} ms` : `code ${code}, signal ${signal}`;
  throw new Error(`bench/call-trace/run.mjs: ${why}: ${stderr || 'no output'}`, { cause });
}

const traced = new Map<string, Promise<readonly Entry[]>>();

/** The function entries of one request of bench/call-trace/requests.mjs, traced once for all tests. */
function trace(request: string): Promise<readonly Entry[]> {
  const entries = traced.get(request) ?? traceNow(request);
  traced.set(request, entries);
  return entries;
}

async function traceNow(request: string): Promise<readonly Entry[]> {
  const args = ['bench/call-trace/run.mjs', request, '--json'];
  const { stdout } = await run(process.execPath, args, { timeout: MAX_TRACE_MS }).catch(explain);
  const traces = JSON.parse(stdout) as Readonly<Record<string, readonly Entry[]>>;
  expect(Object.keys(traces)).toEqual([request]);
  return traces[request];
}

const countOf = (entries: readonly Entry[], ...names: readonly string[]): number =>
  entries.filter(({ name }) => names.includes(name)).length;

const hashes = (entries: readonly Entry[]): number => countOf(entries, 'hash', 'hashBytes');

const decisions = (entries: readonly Entry[]): number =>
  entries.filter(({ file, name }) => file === 'policies/bucket.ts' && name === 'check').length;

/** What the read callback of a daemon's connection enters, itself included: timers of the daemon run beside it. */
function insideRead(entries: readonly Entry[]): readonly Entry[] {
  const first = entries.findIndex(({ file }) => file === 'daemon/server/read-buffer.ts');
  expect(first).toBeGreaterThanOrEqual(0);
  const end = entries.findIndex(({ depth }, n) => n > first && depth <= entries[first].depth);
  return entries.slice(first, end === -1 ? undefined : end);
}

/** Holds the number of files of a path to test/ratchet.json. */
function holdFiles(path: string, entries: readonly Entry[]): void {
  const files = [...new Set(entries.map(({ file }) => file))];
  expect(files).toContain('policies/bucket.ts');
  holdRatchet([folderCount(`files a check enters: ${path}`, files)]);
}

describe('call trace', { timeout: MAX_TRACE_MS + 10_000 }, () => {
  test('library check: goes from limiter to backend, policy and counters, and hashes once', async () => {
    const entries = await trace('library: check');
    expect(entries[0]).toMatchObject({ file: 'limiter/sync-limiter.ts', name: 'check' });
    const files = entries.map(({ file }) => file);
    const path = ['limiter/sync-limiter.ts', 'backends/local/backend.ts'].concat([
      ...['backends/local/table.ts', 'core/hash.ts', 'policies/bucket.ts', 'limiter/stats.ts'],
    ]);
    const firstAt = path.map((file) => files.indexOf(file));
    expect(firstAt).toEqual(firstAt.toSorted((a, b) => a - b));
    expect(firstAt).not.toContain(-1);
    const folders = [...new Set(files.map((file) => file.slice(0, file.lastIndexOf('/'))))];
    expect(folders.toSorted()).toEqual(['backends/local', 'core', 'limiter', 'policies']);
    expect(hashes(entries)).toBe(1);
    expect(decisions(entries)).toBe(1);
  });

  test('library permit: is validated once when acquired, and once when settled', async () => {
    const entries = await trace('library: tryAcquire and settle');
    expect(countOf(entries, 'requireKey')).toBe(1);
    expect(countOf(entries, 'requireResult')).toBe(1);
    const clockEntries = entries.filter(({ file }) => file === 'core/clock.ts').length;
    expect(clockEntries, 'two clock reads of three functions each').toBeLessThanOrEqual(6);
  });

  test.each([
    'daemon: line',
    'daemon: RESP, SLUICE.CHECK',
    'daemon: RESP, SLUICE.CHECK by pattern',
    'daemon: HTTP, GET',
    'daemon: HTTP, POST',
  ])('%s: hashes the key once and runs the rule once', async (request) => {
    const entries = await trace(request);
    expect(hashes(entries)).toBe(1);
    expect(decisions(entries)).toBe(1);
  });

  test('daemon: RESP, CL.THROTTLE: hashes the key once', async () => {
    expect(hashes(await trace('daemon: RESP, CL.THROTTLE'))).toBe(1);
  });

  test('daemon: HTTP, GET: enters fewer than 80 functions', async () => {
    const entries = await trace('daemon: HTTP, GET');
    const request = insideRead(entries).slice(1);
    expect(request.map(({ file }) => file)).toContain('policies/bucket.ts');
    expect(request.length).toBeLessThan(80);
  });

  test('library check: enters no more files than test/ratchet.json records', async () => {
    holdFiles('local', await trace('library: check'));
  });

  test.each([
    ['RESP', 'daemon: RESP, SLUICE.CHECK'],
    ['HTTP', 'daemon: HTTP, GET'],
  ])(
    'daemon, %s: a check enters no more files than test/ratchet.json records',
    async (path, request) => {
      holdFiles(path, insideRead(await trace(request)));
    },
  );

  test.skipIf(redisServer() === undefined)(
    'Redis backend: a check enters no more files than test/ratchet.json records',
    async () => {
      holdFiles('Redis', await trace('backend: redis'));
    },
  );
});
