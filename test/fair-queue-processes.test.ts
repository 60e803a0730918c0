/** Fair queuing over several processes with a real Redis: shares, use of the rate, and processes that are killed. */

import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { fairnessOf } from './support/flows.ts';
import { redisServer, type Service, startRedis } from './support/services.ts';

const WORKER = new URL('./support/fair-worker.mjs', import.meta.url).pathname;
const RATE = 200;
/** The burst makes up for the stalls of a busy machine. */
const BURST = 100;
const LIMIT = { bucket: { rate: RATE, burst: BURST } };

interface Load {
  readonly flow: string;
  readonly tenant?: string;
  readonly flowWeight?: number;
  readonly callers: number;
}

interface Worker {
  readonly child: ChildProcess;
  readonly nextLine: () => Promise<string>;
}

type Served = readonly (readonly [flow: string, dueAt: number])[];

const pause = (ms: number) => new Promise((later) => setTimeout(later, ms));

describe.skipIf(redisServer() === undefined)('fair queue of several processes', () => {
  let service: Service;
  let workers: Worker[] = [];

  beforeEach(async () => {
    service = await startRedis();
  });
  afterEach(async () => {
    for (const { child } of workers) child.kill('SIGKILL');
    workers = [];
    await service.stop();
  });

  async function startWorkers(...loads: (readonly Load[])[]): Promise<void> {
    workers = loads.map((flows) => {
      const text = JSON.stringify({ limit: LIMIT, order: 'fair', flows });
      const stdio = ['pipe', 'pipe', 'inherit'] as const;
      const child = spawn(process.execPath, [WORKER, String(service.port), text], {
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
    expect(served.length).toBeLessThanOrEqual((RATE * spanMs) / 1000 + BURST + 1);
    return served.length / ((RATE * spanMs) / 1000);
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
    await pause(4500);
    const counts = countsOf(await endWorkers());
    const unit = [...counts.values()].reduce((a, b) => a + b, 0) / 7;
    for (const weight of [1, 2, 4]) {
      const got = counts.get(`w${weight}`) ?? 0;
      expect(Math.abs(got - unit * weight)).toBeLessThanOrEqual(Math.max(1, 0.02 * unit * weight));
    }
  });

  test('a process killed with 500 waiters: its flow is skipped, and the others get the whole rate', {
    retry: 2,
  }, async () => {
    await startWorkers([{ flow: 'killed', callers: 500 }], honest('ab'), honest('cd'));
    await pause(1000);
    workers[0].child.kill('SIGKILL');
    await pause(5500); // a process without a heartbeat for 3 s is gone
    const served = await endWorkers(workers.slice(1));
    const end = served[served.length - 1][1];
    const last = served.filter(([, dueAt]) => dueAt > end - 2500);
    expect(last.length).toBeGreaterThanOrEqual(0.95 * 2.5 * RATE);
    const counts = countsOf(last);
    expect(counts.size).toBe(4);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.99);
    const dueAts = served.map(([, dueAt]) => dueAt);
    const gaps = dueAts.slice(1).map((at, n) => at - dueAts[n]);
    expect(Math.max(...gaps)).toBeLessThan(4500); // once
    expect(gaps.filter((gap) => gap > 1000).length).toBeLessThanOrEqual(1);
  });
});
