/** Fair queuing over several processes with a real Redis: shares, use of the rate, and processes that are killed. */

import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { fairnessOf } from './support/flows.ts';
import { type RedisProxy, startProxy } from './support/redis-proxy.ts';
import { redisServer, type Service, startRedis } from './support/services.ts';

const WORKER = new URL('./support/fair-worker.mjs', import.meta.url).pathname;
const RATE = 100;
/** With a burst of 1 every millisecond in which no permit is granted is lost. */
const LIMIT = { bucket: { rate: RATE, burst: 1 } };

interface Load {
  readonly flow: string;
  readonly tenant?: string;
  readonly flowWeight?: number;
  readonly callers: number;
  /** Of each call, in ms. */
  readonly wait?: number;
}

interface Worker {
  readonly child: ChildProcess;
  readonly nextLine: () => Promise<string>;
}

/** When a permit was due is an instant of Redis's clock. */
type Served = readonly (readonly [flow: string, dueAt: number, waitedMs: number])[];

const pause = (ms: number) => new Promise((later) => setTimeout(later, ms));

describe.skipIf(redisServer() === undefined)('fair queue of several processes', () => {
  let service: Service;
  let proxy: RedisProxy | undefined;
  let workers: Worker[] = [];

  beforeEach(async () => {
    service = await startRedis();
  });
  afterEach(async () => {
    for (const { child } of workers) child.kill('SIGKILL');
    workers = [];
    proxy?.stop();
    proxy = undefined;
    await service.stop();
  });

  const startWorkers = (...loads: (readonly Load[])[]): Promise<void> =>
    startWorkersOf({ limit: LIMIT, order: 'fair' }, ...loads);

  async function startWorkersOf(settings: object, ...loads: (readonly Load[])[]): Promise<void> {
    const { port } = proxy ?? service;
    workers = loads.map((flows) => {
      const text = JSON.stringify({ ...settings, flows });
      const stdio = ['pipe', 'pipe', 'inherit'] as const;
      const child = spawn(process.execPath, [WORKER, String(port), text], {
        stdio: [...stdio],
      });
      const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream });
      const received = lines[Symbol.asyncIterator]();
      return { child, nextLine: async () => String((await received.next()).value) };
    });
    for (const { nextLine } of workers) expect(await nextLine()).toBe('ready');
    for (const { child } of workers) child.stdin?.write('go\n');
  }

  async function endWorkers(of = workers): Promise<Served> {
    for (const { child } of of) child.stdin?.write('end\n');
    const served = await Promise.all(of.map(async ({ nextLine }) => JSON.parse(await nextLine())));
    return (served.flat() as Served).toSorted(([, a], [, b]) => a - b);
  }

  /** Permits of each flow or tenant, of those due in the middle of the run: all processes wait then. */
  function countsOf(served: Served): Map<string, number> {
    const [from, to] = [served[0][1] + 1000, served[served.length - 1][1] - 200];
    const counts = new Map<string, number>();
    for (const [flow, dueAt] of served)
      if (dueAt >= from && dueAt < to) counts.set(flow, (counts.get(flow) ?? 0) + 1);
    return counts;
  }

  /** The part of the rate that was used from the first permit to the last. */
  function utilisationOf(served: Served): number {
    const spanMs = served[served.length - 1][1] - served[0][1];
    expect(served.length).toBeLessThanOrEqual((RATE * spanMs) / 1000 + 2);
    return (served.length - 1) / ((RATE * spanMs) / 1000);
  }

  const honest = (names: string, callers = 8): Load[] =>
    [...names].map((flow) => ({ flow, callers }));

  test('a hog of 100 times the demand in its own process: Jain index of at least 0.99', {
    retry: 2,
  }, async () => {
    await startWorkers([{ flow: 'hog', callers: 800 }], honest('ab'), honest('cd'));
    await pause(3500);
    const served = await endWorkers();
    expect(utilisationOf(served)).toBeGreaterThanOrEqual(0.99);
    const counts = countsOf(served);
    expect(counts.size).toBe(5);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.99);
  });

  test('a tenant of 50 flows over two processes: Jain index of tenants of at least 0.99', {
    retry: 2,
  }, async () => {
    const shards = Array.from({ length: 50 }, (_, n) => {
      return { flow: `shard-${n}`, tenant: 'hog', callers: 8 };
    });
    const tenants = [...'abcd'].map((tenant) => ({ flow: 'only', tenant, callers: 8 }));
    await startWorkers(
      [...shards.slice(0, 25), ...tenants.slice(0, 2)],
      [...shards.slice(25), ...tenants.slice(2)],
    );
    await pause(3500);
    const served = await endWorkers();
    expect(utilisationOf(served)).toBeGreaterThanOrEqual(0.99);
    const counts = countsOf(served);
    expect(counts.size).toBe(5);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.99);
  });

  test('weights 1, 2 and 4 in three processes: shares within 2 %', { retry: 2 }, async () => {
    const weighted = [1, 2, 4].map((flowWeight) => [
      { flow: `w${flowWeight}`, flowWeight, callers: 32 },
    ]);
    await startWorkers(...weighted);
    await pause(4000);
    const counts = countsOf(await endWorkers());
    const unit = [...counts.values()].reduce((a, b) => a + b, 0) / 7;
    for (const weight of [1, 2, 4]) {
      const got = counts.get(`w${weight}`) ?? 0;
      expect(Math.abs(got - unit * weight)).toBeLessThanOrEqual(Math.max(1, 0.02 * unit * weight));
    }
  });

  test.each([
    [1, 'fair'],
    [50, 'fair'],
    [400, 'fair'],
    [400, 'fifo'],
  ])(
    'round trip of %i ms, order %s, burst 1: uses at least 99 % of the rate',
    { retry: 2 },
    async (rttMs, order) => {
      proxy = await startProxy(service.port, rttMs / 2);
      // More callers than permits of a round trip and of the time that they are granted ahead.
      await startWorkersOf({ limit: LIMIT, order }, honest('a', 80), honest('b', 80));
      await pause(4000);
      expect(utilisationOf(await endWorkers())).toBeGreaterThanOrEqual(0.99);
    },
  );

  test('most callers give up, 50 ms away: permits are not granted to those, and 99 % of the rate is used', {
    retry: 2,
  }, async () => {
    proxy = await startProxy(service.port, 25);
    const loads = [...'ab'].map((flow) => [{ flow, callers: 150, wait: 800 }]);
    await startWorkers(...loads); // 3 s of work wait, and none waits longer than 0.8 s
    await pause(4000);
    expect(utilisationOf(await endWorkers())).toBeGreaterThanOrEqual(0.99);
  });

  test('a starved flow waits at most twice as long as its fair share takes', {
    retry: 2,
  }, async () => {
    await startWorkers([{ flow: 'hog', callers: 400 }], [{ flow: 'small', callers: 8 }]);
    await pause(3500);
    const served = await endWorkers();
    const waits = served.filter(([flow]) => flow === 'small').map(([, , waitedMs]) => waitedMs);
    // 8 callers at half of the rate: each waits for the 7 others.
    const fairMs = (8 / (RATE / 2)) * 1000;
    const mean = waits.reduce((a, b) => a + b, 0) / waits.length;
    expect(waits.length).toBeGreaterThan(100);
    expect(mean).toBeLessThanOrEqual(2 * fairMs);
  });

  test.each(['fair', 'fifo'])(
    'a process killed with 300 waiters, order %s: others overtake them within a second',
    { retry: 2 },
    async (order) => {
      const settings = { limit: LIMIT, order };
      await startWorkersOf(settings, [{ flow: 'killed', callers: 300 }], honest('a'), honest('b'));
      await pause(1200); // with a heartbeat of each process
      workers[0].child.kill('SIGKILL');
      await pause(2500);
      const dueAts = (await endWorkers(workers.slice(1))).map(([, dueAt]) => dueAt);
      const gaps = dueAts.slice(1).map((at, n) => at - dueAts[n]);
      expect(Math.max(...gaps.slice(-100))).toBeLessThan(1500); // with 300 waiters it would be 3 s
      const end = dueAts[dueAts.length - 1];
      const last = dueAts.filter((at) => at > end - 1000);
      expect(last.length).toBeGreaterThanOrEqual(0.95 * RATE);
    },
  );
});
