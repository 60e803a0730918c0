import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { fairnessOf } from '../../../test/support/flows.ts';
import { redisCli, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { VirtualFleet, type VirtualProcess } from '../../../test/support/virtual-fleet.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { QueueOrder } from '../../limiter/wait-queue.ts';
import type { Limit } from '../../policies/limit.ts';
import { LEASE_TTL_MS } from './lua-semaphore.ts';
import { redis } from './options.ts';

const RATE = 50;
/** With a burst of 1, every millisecond without a granted permit is lost. */
const LIMIT: Limit = { bucket: { rate: RATE, burst: 1 } };

interface Load {
  readonly flow: string;
  readonly callers: number;
  /** Longest wait of each call, in ms. */
  readonly wait?: number;
  /** How long a call runs, in ms. */
  readonly runs?: number;
}

interface Member {
  readonly process: VirtualProcess;
  readonly api: RemoteLimiter;
}

interface Served {
  readonly flow: string;
  readonly dueAt: number;
  readonly waitedMs: number;
}

describe.skipIf(redisServer() === undefined)('fair queue of a fleet', () => {
  let service: Service;
  let fleet: VirtualFleet;
  let members: Member[];
  let served: Served[];
  let refusals: Map<string, number>;
  let isOver: boolean;
  let running: number;
  let mostRunning: number;

  beforeAll(async () => {
    service = await startRedis();
  });
  afterAll(() => service.stop());
  beforeEach(async () => {
    redisCli(service.port, 'FLUSHALL');
    fleet = await VirtualFleet.start(service.port);
    served = [];
    refusals = new Map();
    isOver = false;
    running = 0;
    mostRunning = 0;
  });
  afterEach(() => fleet.stop());

  /** Creates `count` processes. */
  function create(limit: Limit, order: QueueOrder, rttMs: number, count: number, max = 10_000) {
    const random = seededRandom(5);
    members = Array.from({ length: count }, () => {
      const process = fleet.process(rttMs);
      const backend = redis(process.client, { fairQueue: true, deadline: '2s' });
      const options = { name: 'api', limit, queue: { order, max }, random, backend };
      return { process, api: limiter({ ...options, clock: process.clock }) };
    });
  }

  /** Every process subscribes and measures a round trip. */
  async function warmUp(rttMs: number): Promise<void> {
    const warm = Promise.all(members.map(({ api }) => api.acquire('warm-up')));
    await fleet.run(6 * rttMs + 200);
    for (const permit of await warm) if (permit.verdict === 'allow') permit.settle();
  }

  /** Callers of a process acquire in a loop. */
  function load({ process, api }: Member, { flow, callers, wait, runs = 0 }: Load): void {
    const { clock } = process;
    const sleep = (ms: number) =>
      new Promise<void>((wake) => clock.wakeAt?.(clock.now() + ms, wake, false));
    const loop = async (): Promise<void> => {
      while (!isOver) {
        const since = clock.now();
        const permit = await api.acquire('key', 1, wait === undefined ? { flow } : { flow, wait });
        if (permit.verdict === 'allow') {
          served.push({ flow, dueAt: permit.dueAt, waitedMs: clock.now() - since });
          mostRunning = Math.max(mostRunning, ++running);
          if (runs > 0) await sleep(runs);
          running--;
          permit.settle();
        } else {
          refusals.set(permit.reason, (refusals.get(permit.reason) ?? 0) + 1);
          if (permit.reason === 'closed') return;
          if (permit.reason !== 'too-long') await sleep(100);
        }
      }
    };
    for (let n = 0; n < callers; n++) void loop();
  }

  async function end(): Promise<number[]> {
    isOver = true;
    const dueAts = served.map(({ dueAt }) => dueAt).sort((a, b) => a - b);
    const closing = Promise.all(members.map(({ api }) => api.close()));
    await fleet.run(2000);
    await closing;
    return dueAts;
  }

  const gapsOf = (dueAts: readonly number[]): number[] =>
    dueAts.slice(1).map((at, n) => at - dueAts[n]);

  /** The used fraction of the rate, from the first permit to the last. */
  function utilisationOf(dueAts: readonly number[], rate = RATE): number {
    const spanMs = dueAts[dueAts.length - 1] - dueAts[0];
    expect(dueAts.length).toBeGreaterThan(rate);
    expect(dueAts.length).toBeLessThanOrEqual((rate * spanMs) / 1000 + 2);
    return (dueAts.length - 1) / ((rate * spanMs) / 1000);
  }

  /** The time in which no permit was granted although one was open. */
  const lostMsOf = (dueAts: readonly number[]): number =>
    dueAts[dueAts.length - 1] - dueAts[0] - (dueAts.length - 1) * (1000 / RATE);

  test.each<[number, QueueOrder]>([
    [1, 'fair'],
    [50, 'fair'],
    [400, 'fair'],
    [1, 'fifo'],
    [400, 'fifo'],
  ])('round trip of %i ms, order %s, burst 1: loses no permit', async (rttMs, order) => {
    create(LIMIT, order, rttMs, 2);
    await warmUp(rttMs);
    for (const [n, flow] of ['a', 'b'].entries()) load(members[n], { flow, callers: 60 });
    await fleet.run(4000);
    expect(utilisationOf(await end())).toBeGreaterThanOrEqual(0.999);
  });

  test('first call of a process, 400 ms away: loses at most the permits of one round trip', async () => {
    create(LIMIT, 'fair', 400, 2);
    for (const [n, flow] of ['a', 'b'].entries()) load(members[n], { flow, callers: 60 });
    await fleet.run(5000);
    expect(lostMsOf(await end())).toBeLessThanOrEqual(400);
  });

  test.each<[QueueOrder]>([['fair'], ['fifo']])(
    'most callers give up, 50 ms away, order %s: permits are not granted to those, and none is lost',
    async (order) => {
      create(LIMIT, order, 50, 2);
      await warmUp(50);
      // 3.2 s of work wait, and none waits longer than 0.8 s.
      for (const [n, flow] of ['a', 'b'].entries())
        load(members[n], { flow, callers: 80, wait: 800 });
      await fleet.run(4000);
      expect(utilisationOf(await end())).toBeGreaterThanOrEqual(0.99);
      expect(refusals.get('too-long')).toBeGreaterThan(100);
    },
  );

  test.each([
    [10, 0.2],
    [100, 80],
    [20, 80],
  ])('spacing of %i ms, %d ms away: loses no permit, and none is early', async (every, rttMs) => {
    create({ spacing: { every } }, 'fifo', rttMs, 3);
    await warmUp(rttMs);
    for (const [n, flow] of ['a', 'b', 'c'].entries()) load(members[n], { flow, callers: 40 });
    await fleet.run(110 * every);
    const dueAts = await end();
    expect(Math.min(...gapsOf(dueAts))).toBeGreaterThanOrEqual(every - 1e-3);
    expect(dueAts.length).toBeGreaterThan(100);
    const spanMs = dueAts[dueAts.length - 1] - dueAts[0];
    expect(((dueAts.length - 1) * every) / spanMs).toBeGreaterThanOrEqual(0.999);
  });

  test('ramp, 80 ms away: uses all tokens of every second, from one round trip after its start', async () => {
    create({ ramp: { min: 20, max: 20, over: '1s' } }, 'fifo', 80, 3);
    await warmUp(80);
    for (const [n, flow] of ['a', 'b', 'c'].entries()) load(members[n], { flow, callers: 20 });
    await fleet.run(4200);
    const dueAts = await end();
    const first = Math.ceil(dueAts[0] / 1000) * 1000;
    for (const second of [first, first + 1000, first + 2000]) {
      const used = dueAts.filter((at) => at >= second && at < second + 1000);
      expect(used.length).toBe(20);
      expect(used[0] - second).toBeLessThanOrEqual(80);
    }
  });

  test('a process stalls again and again: at most the permits of its first stall are lost', async () => {
    create(LIMIT, 'fair', 4, 3);
    await warmUp(4);
    for (const [n, flow] of ['a', 'b', 'c'].entries()) load(members[n], { flow, callers: 60 });
    for (let n = 0; n < 8; n++) {
      members[n % 3].process.stall(120);
      await fleet.run(500);
    }
    expect(lostMsOf(await end())).toBeLessThanOrEqual(120);
  });

  test('callers give up while processes stall: at most the permits due in the stalls are lost', async () => {
    create(LIMIT, 'fair', 50, 2);
    await warmUp(50);
    for (const [n, flow] of ['a', 'b'].entries())
      load(members[n], { flow, callers: 80, wait: 800 });
    for (let n = 0; n < 8; n++) {
      members[n % 2].process.stall(120);
      await fleet.run(500);
    }
    // Half of the permits belong to the process that stalls: a caller may give up before it reads its message.
    expect(lostMsOf(await end())).toBeLessThanOrEqual((8 * 120) / 2);
  });

  test.each<[QueueOrder]>([['fair'], ['fifo']])(
    'a process killed with 300 waiters, order %s: its waiters are overtaken within a heartbeat',
    async (order) => {
      create(LIMIT, order, 4, 3);
      await warmUp(4);
      for (const [n, callers] of [300, 60, 60].entries())
        load(members[n], { flow: `${n}`, callers });
      await fleet.run(1000);
      const [killed] = members.splice(0, 1);
      await killed.process.kill();
      await fleet.run(3000);
      served = served.filter(({ flow }) => flow !== '0');
      const killedAt = fleet.now - 3000;
      const dueAts = (await end()).filter((at) => at > killedAt);
      expect(dueAts[0] - killedAt).toBeLessThanOrEqual(500);
      expect(utilisationOf(dueAts)).toBeGreaterThanOrEqual(0.999);
    },
  );

  /** Permits of each flow that were due from this instant on. */
  function countsFrom(since: number): Map<string, number> {
    const counts = new Map<string, number>();
    for (const { flow, dueAt } of served)
      if (dueAt >= since) counts.set(flow, (counts.get(flow) ?? 0) + 1);
    return counts;
  }

  test('a full queue: the flow with the most waiters is refused, others get in, and the order stays fair', async () => {
    create(LIMIT, 'fair', 4, 2, 40);
    await warmUp(4);
    load(members[0], { flow: 'hog', callers: 300 });
    await fleet.run(500);
    expect(members[0].api.stats().waiting).toBe(40);
    expect(refusals.get('queue-full')).toBeGreaterThan(260);
    for (const flow of ['b', 'c']) load(members[0], { flow, callers: 8 });
    load(members[1], { flow: 'd', callers: 30 });
    await fleet.run(500);
    const since = fleet.now;
    await fleet.run(3000);
    expect(members.map(({ api }) => api.stats().waiting)).toEqual([40, 30]); // the bound is per process
    // A waiter that was refused or has its permit is not in Redis's queue either.
    const queued = Number(redisCli(service.port, 'HLEN', 'sluice:{api:key}:bucket:fair:ids'));
    expect(queued).toBeLessThanOrEqual(70);
    const counts = countsFrom(since);
    expect(counts.size).toBe(4);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.999);
    expect(utilisationOf(await end())).toBeGreaterThanOrEqual(0.999);
    expect(refusals.get('closed')).toBeGreaterThan(0);
  });

  test('a full queue, order fifo: refuses at once, and the next call gets in when a place is free', async () => {
    create(LIMIT, 'fifo', 4, 1, 3);
    await warmUp(4);
    const [{ api }] = members;
    const waiting = Array.from({ length: 5 }, () => api.acquire('key', 1, { wait: '5s' }));
    await fleet.run(10);
    const refused = { verdict: 'deny', reason: 'queue-full' };
    expect(await Promise.all(waiting.slice(3))).toMatchObject([refused, refused]);
    await fleet.run(30);
    const next = api.acquire('key', 1, { wait: '5s' });
    await fleet.run(200);
    for (const permit of [...waiting.slice(0, 3), next])
      expect((await permit).verdict).toBe('allow');
    await end();
  });

  test('concurrency, order fair: equal shares under a hog, never above the limit, no wait above twice the fair share', async () => {
    const [limit, runs, callers] = [10, 50, 12];
    create({ concurrency: limit }, 'fair', 4, 3);
    await warmUp(4);
    load(members[0], { flow: 'hog', callers: 400, runs });
    for (const [n, flow] of [...'abcd'].entries())
      load(members[1 + (n % 2)], { flow, callers, runs });
    await fleet.run(1000);
    const since = fleet.now;
    await fleet.run(3000);
    expect(mostRunning).toBe(limit);
    const counts = countsFrom(since);
    expect(counts.size).toBe(5);
    expect(fairnessOf(counts.values())).toBeGreaterThanOrEqual(0.999);
    const waits = served.filter(({ flow }) => flow !== 'hog').map(({ waitedMs }) => waitedMs);
    // Each of five flows has two of the ten positions.
    expect(Math.max(...waits)).toBeLessThanOrEqual(2 * (callers / 2) * runs);
    await end();
  });

  test.each<[QueueOrder]>([['fair'], ['fifo']])(
    'concurrency, order %s: a settled call hands its place on within two round trips, not at a heartbeat',
    async (order) => {
      const [limit, runs, rttMs] = [2, 5, 4];
      create({ concurrency: limit }, order, rttMs, 2);
      await warmUp(rttMs);
      for (const [n, flow] of ['a', 'b'].entries()) load(members[n], { flow, callers: 20, runs });
      await fleet.run(100);
      const since = fleet.now;
      await fleet.run(1000);
      const [a = 0, b = 0] = countsFrom(since).values();
      expect(a + b).toBeGreaterThanOrEqual((1000 / (runs + 2 * rttMs)) * limit);
      expect(mostRunning).toBe(limit);
      await end();
    },
  );

  test('concurrency, order fair: the places of a killed process are free when its leases end', async () => {
    create({ concurrency: 4 }, 'fair', 4, 2);
    await warmUp(4);
    load(members[0], { flow: 'killed', callers: 50, runs: 1e9 });
    await fleet.run(100);
    load(members[1], { flow: 'a', callers: 10, runs: 50 });
    await fleet.run(500);
    expect(countsFrom(0)).toEqual(new Map([['killed', 4]]));
    const [killed] = members.splice(0, 1);
    const killedAt = fleet.now;
    await killed.process.kill();
    await fleet.run(LEASE_TTL_MS + 2000);
    const first = served.find(({ flow }) => flow === 'a')?.dueAt ?? Infinity;
    expect(first - killedAt).toBeGreaterThan(LEASE_TTL_MS / 2); // renewed three times within their lifetime
    expect(first - killedAt).toBeLessThanOrEqual(LEASE_TTL_MS + 1000);
    await end();
  });

  test("concurrency, Redis's clock set back: leases of a dead process end after one lease, live ones stay", async () => {
    create({ concurrency: 3 }, 'fifo', 4, 2);
    await warmUp(4);
    for (const [n, flow] of ['dead', 'live'].entries())
      load(members[n], { flow, callers: 1, runs: 1e9 });
    await fleet.run(100);
    const [dead] = members.splice(0, 1);
    await dead.process.kill();
    fleet.redisAheadMs = -3_600_000;
    const inFlight = async () => {
      const read = members[0].api.inspect('key');
      await fleet.run(20);
      return (await read)?.inFlight;
    };
    expect(await inFlight()).toBe(2);
    await fleet.run(LEASE_TTL_MS);
    expect(await inFlight()).toBe(1);
    await end();
  });
});
