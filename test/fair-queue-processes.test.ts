/** Fair queuing over several processes with a real Redis: shares, use of the rate, and processes that are killed. */

import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { fairnessOf } from './support/flows.ts';
import { type RedisProxy, startProxy } from './support/redis-proxy.ts';
import { redisCli, redisServer, type Service, startRedis } from './support/services.ts';

const WORKER = new URL('./support/fair-worker.mjs', import.meta.url).pathname;
const RATE = 50;
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

  beforeAll(async () => {
    service = await startRedis();
  });
  afterAll(() => service.stop());
  afterEach(() => {
    for (const { child } of workers) child.kill('SIGKILL');
    workers = [];
    proxy?.stop();
    proxy = undefined;
    redisCli(service.port, 'FLUSHALL');
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

  /**
   * The permits due while all processes wait and know how late their requests arrive. On a busy machine permits are granted
   * up to a second ahead, and their callers do not wait meanwhile. So each flow needs more callers than its share of a second.
   */
  const middleOf = (served: Served): Served =>
    served.filter(([, at]) => at >= served[0][1] + 1000 && at < served[served.length - 1][1] - 300);

  function countsOf(served: Served): Map<string, number> {
    const counts = new Map<string, number>();
    for (const [flow] of middleOf(served)) counts.set(flow, (counts.get(flow) ?? 0) + 1);
    return counts;
  }

  const gapsOf = (served: Served): number[] =>
    served.slice(1).map(([, dueAt], n) => dueAt - served[n][1]);

  /** The part of the rate that was used, except in the longest gap: a process learns from a stall longer than all before. */
  function utilisationOf(served: Served): number {
    const sum = (ms: readonly number[]): number => ms.reduce((a, b) => a + b, 0);
    expect(served.length).toBeLessThanOrEqual((RATE * sum(gapsOf(served))) / 1000 + 2);
    const gaps = gapsOf(middleOf(served)).toSorted((a, b) => a - b);
    expect(gaps.length).toBeGreaterThan(RATE);
    return (gaps.length - 1) / ((RATE * sum(gaps.slice(0, -1))) / 1000);
  }

  const honest = (names: string, callers = 16): Load[] =>
    [...names].map((flow) => ({ flow, callers }));

  test('a hog of 100 times the demand: Jain index of at least 0.99, no wait above twice the fair share', async () => {
    await startWorkers([{ flow: 'hog', callers: 1600 }], honest('ab'), honest('cd'));
    await pause(4000);
    const served = await endWorkers();
    expect(utilisationOf(served)).toBeGreaterThanOrEqual(0.99);
    const counts = countsOf(served);
    expect(counts.size).toBe(5);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.99);
    const waits = served.filter(([flow]) => flow !== 'hog').map(([, , waitedMs]) => waitedMs);
    expect(Math.max(...waits)).toBeLessThanOrEqual(2 * (16 / (RATE / 5)) * 1000);
  });

  test('a tenant of 50 flows over two processes: Jain index of tenants of at least 0.99', async () => {
    const shards = Array.from({ length: 50 }, (_, n) => {
      return { flow: `shard-${n}`, tenant: 'hog', callers: 16 };
    });
    const tenants = [...'abcd'].map((tenant) => ({ flow: 'only', tenant, callers: 16 }));
    await startWorkers(
      [...shards.slice(0, 25), ...tenants.slice(0, 2)],
      [...shards.slice(25), ...tenants.slice(2)],
    );
    await pause(3200);
    const served = await endWorkers();
    expect(utilisationOf(served)).toBeGreaterThanOrEqual(0.99);
    const counts = countsOf(served);
    expect(counts.size).toBe(5);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.99);
  });

  test('weights 1, 2 and 4 in three processes: shares within 2 %, or one permit', async () => {
    const weighted = [1, 2, 4].map((flowWeight) => [
      { flow: `w${flowWeight}`, flowWeight, callers: 64 },
    ]);
    await startWorkers(...weighted);
    await pause(3000);
    const counts = countsOf(await endWorkers());
    const unit = [...counts.values()].reduce((a, b) => a + b, 0) / 7;
    for (const weight of [1, 2, 4]) {
      const got = counts.get(`w${weight}`) ?? 0;
      expect(Math.abs(got - unit * weight)).toBeLessThanOrEqual(Math.max(1, 0.02 * unit * weight));
    }
  });

  test.each([
    [50, 'fair'],
    [400, 'fair'],
    [400, 'fifo'],
  ])(
    'round trip of %i ms, order %s, burst 1: uses at least 99 % of the rate',
    async (rttMs, order) => {
      proxy = await startProxy(service.port, rttMs / 2);
      // More callers than permits of a round trip and of the time that they are granted ahead.
      await startWorkersOf({ limit: LIMIT, order }, honest('a', 60), honest('b', 60));
      await pause(3200);
      expect(utilisationOf(await endWorkers())).toBeGreaterThanOrEqual(0.99);
    },
  );

  test('most callers give up, 50 ms away: permits are not granted to those, and 90 % of the rate is used', async () => {
    proxy = await startProxy(service.port, 25);
    const loads = [...'ab'].map((flow) => [{ flow, callers: 80, wait: 800 }]);
    await startWorkers(...loads); // 3.2 s of work wait, and none waits longer than 0.8 s
    await pause(3200);
    // A permit is lost whose caller gives up after it was granted and before a busy process reads the message.
    expect(utilisationOf(await endWorkers())).toBeGreaterThanOrEqual(0.9);
  });

  /** On the clock of Redis, in ms. */
  function redisNow(): number {
    const [seconds, micros] = redisCli(service.port, 'TIME').split('\n').map(Number);
    return seconds * 1000 + micros / 1000;
  }

  test.each(['fair', 'fifo'])(
    'a process killed with 300 waiters, order %s: its waiters are overtaken',
    async (order) => {
      const settings = { limit: LIMIT, order };
      await startWorkersOf(settings, [{ flow: 'killed', callers: 300 }], honest('a'), honest('b'));
      await pause(1000); // with a heartbeat of each process
      workers[0].child.kill('SIGKILL');
      const killedAt = redisNow();
      await pause(2600);
      const served = await endWorkers(workers.slice(1));
      const dueAts = served.map(([, dueAt]) => dueAt);
      // Found within 0.5 s, and a second of permits was granted ahead; another second for late timers of a busy machine.
      // If they kept their place: 5 s in the order fifo.
      const resumedAt = dueAts.find((dueAt) => dueAt > killedAt) ?? Infinity;
      expect(resumedAt - killedAt).toBeLessThan(2500);
      // Later none is lost. If every third permit was for the killed process: two thirds of the rate.
      const after = served.filter(([, dueAt]) => dueAt > killedAt + 1500);
      const gaps = gapsOf(after).toSorted((a, b) => a - b);
      const spanMs = gaps.slice(0, -1).reduce((a, b) => a + b, 0);
      expect((gaps.length - 1) / ((RATE * spanMs) / 1000)).toBeGreaterThanOrEqual(0.9);
    },
  );
});
