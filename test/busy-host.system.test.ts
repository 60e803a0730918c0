/** Limits in Redis, `onUnavailable: 'local'`, on a host with more work than processors: no fault, so no overshoot. */

import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { redisServer, type Service, startRedis } from './support/services.ts';

const WORKER = new URL('./support/shared-worker.mjs', import.meta.url).pathname;
const LIMITS = {
  bucket: { rate: '1/h', burst: 20 },
  window: { limit: 40, per: '1h' },
  concurrency: 5,
};
const DEADLINE_MS = 500;
/** Longer than the deadline, and far from two. */
const REDIS_STALL_MS = 600;

/** What a worker prints. */
interface Run {
  readonly passed: Readonly<Record<'bucket' | 'window', Readonly<Record<string, number>>>>;
  readonly held: readonly (readonly [from: number, to: number])[];
  readonly outages: readonly string[];
}

const pause = (ms: number) => new Promise((later) => setTimeout(later, ms));

/** Of all keys, the calls that passed of the one with the most. */
function mostOf(runs: readonly Run[], name: 'bucket' | 'window'): number {
  const counts = new Map<string, number>();
  for (const { passed } of runs)
    for (const [key, n] of Object.entries(passed[name]))
      counts.set(key, (counts.get(key) ?? 0) + n);
  return Math.max(...counts.values());
}

function mostHeld(runs: readonly Run[]): number {
  const changes = runs
    .flatMap(({ held }) =>
      held.flatMap(
        ([from, to]) =>
          [
            [from, 1],
            [to, -1],
          ] as const,
      ),
    )
    .toSorted((a, b) => a[0] - b[0]);
  let count = 0;
  return Math.max(...changes.map(([, change]) => (count += change)));
}

describe.skipIf(redisServer() === undefined)('busy host', () => {
  let service: Service;
  const children: ChildProcess[] = [];
  beforeAll(async () => {
    service = await startRedis();
  });
  afterEach(() => {
    for (const child of children) child.kill('SIGKILL');
  });
  afterAll(async () => {
    await service?.stop();
  });

  function start(args: readonly string[]): ChildProcess {
    const child = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    children.push(child);
    return child;
  }

  test('six processes, the processors busy and Redis stalled for longer than the deadline: no limit is exceeded', async () => {
    const settings = JSON.stringify({ limits: LIMITS, options: { deadline: DEADLINE_MS } });
    const workers = Array.from({ length: 6 }, () => {
      const child = start([WORKER, String(service.port), settings]);
      const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
      const received = lines[Symbol.asyncIterator]();
      return { child, nextLine: async () => String((await received.next()).value) };
    });
    for (const { nextLine } of workers) expect(await nextLine()).toBe('ready');
    const loop = 'const end = Date.now() + 10000; while (Date.now() < end);';
    for (let n = 0; n < 4; n++) start(['--eval', loop]);
    for (const { child } of workers) child.stdin?.write('go\n');
    for (let n = 0; n < 4; n++) {
      await pause(600);
      service.pause();
      await pause(REDIS_STALL_MS);
      service.resume();
    }
    await pause(600);
    for (const { child } of workers) child.stdin?.write('end\n');
    const runs: Run[] = await Promise.all(
      workers.map(async ({ nextLine }) => JSON.parse(await nextLine())),
    );
    expect(runs.flatMap(({ outages }) => outages)).toEqual([]);
    expect([mostOf(runs, 'bucket'), mostOf(runs, 'window'), mostHeld(runs)]).toEqual([20, 40, 5]);
  }, 60_000);
});
