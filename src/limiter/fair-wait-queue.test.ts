import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { fairnessOf, runFlows } from '../../test/support/flows.ts';
import { type FlowOptions, readFlow } from '../core/flow.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { throttle } from '../throttle/throttle.ts';
import { all } from './composite-limiter.ts';
import { FairWaitQueue, MAX_FLOWS } from './fair-wait-queue.ts';
import { limiter } from './limiter.ts';

const RATE = 100;

function setUp(queue: { max?: number; order?: 'fair' | 'fifo' } = {}) {
  const clock = new VirtualClock();
  const limit = { bucket: { rate: RATE, burst: 1 } } as const;
  const api = limiter({ limit, queue: { order: 'fair', ...queue }, clock });
  return { clock, api };
}

const honest = (names: string, callers = 4) =>
  [...names].map((flow) => ({ flow, callers, weight: 1 }));

/** Calls of each flow in `ms`, in a fresh limiter. */
async function shares(
  flows: Parameters<typeof runFlows>[1],
  ms: number,
  order: 'fair' | 'fifo' = 'fair',
) {
  const { clock, api } = setUp({ order });
  const served = await runFlows(
    (options, cost) => api.acquire('key', cost, options),
    flows,
    () => clock.advanceAsync(ms),
  );
  api.close();
  return served;
}

const sum = (counts: Iterable<number>): number => [...counts].reduce((a, b) => a + b, 0);

describe('order fair', () => {
  test('four flows and one with 100 times their demand: Jain index of at least 0.99, all permits used', async () => {
    const hog = { flow: 'hog', callers: 400, weight: 1 };
    const served = await shares([hog, ...honest('abcd')], 20_000);
    expect(fairnessOf(served.values())).toBeGreaterThanOrEqual(0.99);
    expect(sum(served.values())).toBeGreaterThanOrEqual(0.99 * 20 * RATE);
    const fifo = await shares([hog, ...honest('abcd')], 20_000, 'fifo');
    expect(fairnessOf(fifo.values())).toBeLessThan(0.3); // what the default order gives
  });

  test('a tenant with 50 flows beside four tenants of one flow: each tenant gets the same', async () => {
    const shards = Array.from({ length: 50 }, (_, n) => {
      return { flow: `shard-${n}`, tenant: 'hog', callers: 8, weight: 1 };
    });
    const tenants = [...'abcd'].map((tenant) => {
      return { flow: 'only', tenant, callers: 4, weight: 1 };
    });
    const served = await shares([...shards, ...tenants], 50_000);
    const byTenant = new Map<string, number>();
    for (const [name, count] of served) {
      const [tenant] = name.split('/');
      byTenant.set(tenant, (byTenant.get(tenant) ?? 0) + count);
    }
    expect(byTenant.size).toBe(5);
    expect(fairnessOf(byTenant.values())).toBeGreaterThanOrEqual(0.99);
    const ofShards = [...served].filter(([name]) => name.startsWith('hog/'));
    expect(fairnessOf(ofShards.map(([, count]) => count))).toBeGreaterThanOrEqual(0.99);
  });

  test('weights 1, 2 and 4 of flows and of tenants: shares within 2 %', async () => {
    for (const tenant of [false, true]) {
      const flows = [1, 2, 4].map((weight) => {
        return { flow: `w${weight}`, ...(tenant && { tenant: `w${weight}` }), weight, callers: 8 };
      });
      const served = [...(await shares(flows, 70_000)).values()];
      const unit = sum(served) / 7;
      for (const [n, weight] of [1, 2, 4].entries())
        expect(Math.abs(served[n] / (unit * weight) - 1)).toBeLessThan(0.02);
    }
  });

  test('costs of 1 and 10: the flows get the same in units, not in calls', async () => {
    const clock = new VirtualClock();
    const limit = { bucket: { rate: RATE, burst: 10 } } as const;
    const api = limiter({ limit, queue: { order: 'fair' }, clock });
    const flows = [
      { flow: 'small', callers: 20, weight: 1, cost: 1 },
      { flow: 'large', callers: 20, weight: 1, cost: 10 },
    ];
    const served = await runFlows(
      (options, cost) => api.acquire('key', cost, options),
      flows,
      () => clock.advanceAsync(40_000),
    );
    api.close();
    const units = [served.get('small') ?? 0, 10 * (served.get('large') ?? 0)];
    expect(fairnessOf(units)).toBeGreaterThanOrEqual(0.999);
    expect(sum(units)).toBeGreaterThanOrEqual(0.99 * 40 * RATE);
  });

  test('a flow that begins to wait behind others is served within twice the time of its fair rate', async () => {
    const { clock, api } = setUp();
    for (const flow of [...'abcdefghi'])
      for (let n = 0; n < 200; n++) void api.acquire('key', 1, { flow });
    await clock.advanceAsync(1_000);
    for (let n = 0; n < 20; n++) {
      const waiting = api.acquire('key', 1, { flow: `late-${n % 2}` });
      await clock.advanceAsync((2 * 10 * 1000) / RATE);
      expect((await waiting).verdict).toBe('allow');
    }
    const light = api.acquire('key', 1, { flow: 'light', flowWeight: 0.1 });
    await clock.advanceAsync((2 * 10 * 1000) / RATE); // its first call owes nothing
    expect((await light).verdict).toBe('allow');
    api.close();
  });

  test('a new name for every call: other flows are not starved', async () => {
    const { clock, api } = setUp();
    let isOver = false;
    const waited: number[] = [];
    const loop = async (flowOf: () => string, onGrant: (waitedMs: number) => void) => {
      while (!isOver) {
        const since = clock.now();
        const permit = await api.acquire('key', 1, { flow: flowOf() });
        if (permit.verdict === 'allow') onGrant(clock.now() - since);
      }
    };
    let names = 0;
    for (let n = 0; n < 50; n++)
      void loop(
        () => `!${names++}`,
        () => {},
      );
    void loop(
      () => 'steady',
      (ms) => waited.push(ms),
    );
    await clock.advanceAsync(60_000);
    isOver = true;
    api.close();
    expect(waited.length).toBeGreaterThan(60);
    expect(Math.max(...waited)).toBeLessThanOrEqual((2 * 51 * 1000) / RATE);
  });

  test('calls that give up cost their flow nothing', async () => {
    const { clock, api } = setUp();
    const waiting = (flow: string) => api.acquire('key', 1, { flow, wait: 15_000 });
    for (let n = 0; n < 2000; n++) void waiting('busy');
    for (let n = 0; n < 500; n++) void api.acquire('key', 1, { flow: 'retries', wait: 20 });
    await clock.advanceAsync(1_000);
    const before = clock.now();
    const served = Array.from({ length: 10 }, () => waiting('retries'));
    for (const one of served) {
      void one.then(() => expect(clock.now() - before).toBeLessThan(300));
    }
    await clock.advanceAsync(300);
    expect(await Promise.all(served)).toMatchObject(served.map(() => ({ verdict: 'allow' })));
    api.close();
  });

  test('full queue: the newest waiter of the longest flow of the longest tenant is refused', async () => {
    const { clock, api } = setUp({ max: 20 });
    await api.acquire('key');
    const log: string[] = [];
    const enter = (name: string, options: FlowOptions) =>
      api
        .acquire('key', 1, options)
        .then((one) => log.push(`${name} ${one.verdict === 'deny' ? one.reason : 'allow'}`));
    for (let n = 0; n < 17; n++) void enter(`long-${n}`, { tenant: 'hog', flow: 'long' });
    for (let n = 0; n < 3; n++) void enter(`short-${n}`, { tenant: 'hog', flow: 'short' });
    void enter('alice', { flow: 'alice' });
    void enter('short-3', { tenant: 'hog', flow: 'short' });
    void enter('long-17', { tenant: 'hog', flow: 'long' });
    await clock.advanceAsync(0);
    expect(log.sort()).toEqual(['long-15 queue-full', 'long-16 queue-full', 'long-17 queue-full']);
    expect(api.stats().waiting).toBe(20);
    await clock.advanceAsync(30);
    expect(log).toContain('alice allow');
    api.close();
  });

  test('concurrency: slots are divided between flows as they are freed', async () => {
    const clock = new VirtualClock();
    const api = limiter({ limit: { concurrency: 4 }, queue: { order: 'fair' }, clock });
    const flows = [{ flow: 'hog', callers: 300, weight: 1 }, ...honest('abc', 6)];
    const acquire = async (options: FlowOptions) => {
      const permit = await api.acquire('db', 1, options);
      if (permit.verdict === 'allow') {
        await new Promise<void>((later) => clock.wakeAt(clock.now() + 10, later));
        permit.settle();
      }
      return permit;
    };
    const served = await runFlows(acquire, flows, () => clock.advanceAsync(10_000));
    api.close();
    expect(fairnessOf(served.values())).toBeGreaterThanOrEqual(0.99);
    expect(sum(served.values())).toBeGreaterThanOrEqual(0.99 * 4 * 1000);
  });

  test('all: two limits with fair queues divide both, and no call is sent to and fro', async () => {
    const clock = new VirtualClock();
    const queue = { order: 'fair' } as const;
    const limits = [RATE, 0.8 * RATE].map((rate) =>
      limiter({ name: `r${rate}`, limit: { bucket: { rate, burst: 3 } }, queue, clock }),
    );
    const both = all(limits);
    const flows = [{ flow: 'hog', callers: 200, weight: 1 }, ...honest('abc')];
    const served = await runFlows(
      (options) => both.acquire('key', 1, options),
      flows,
      () => clock.advanceAsync(20_000),
    );
    both.close();
    expect(fairnessOf(served.values())).toBeGreaterThanOrEqual(0.99);
    expect(sum(served.values())).toBeGreaterThanOrEqual(0.99 * 20 * 0.8 * RATE);
  });

  test('throttle: flow, tenant and their weights are read from the arguments of a call', async () => {
    const clock = new VirtualClock();
    const order: string[] = [];
    const send = throttle(async (user: string) => void order.push(user), {
      limit: { bucket: { rate: 1, burst: 1 } },
      queue: { order: 'fair' },
      wait: true,
      flow: (user: string) => user,
      flowWeight: (user: string) => (user === 'b' ? 2 : 1),
      clock,
    });
    for (const user of 'xaaaabbbb') void send(user);
    await clock.advanceAsync(20_000);
    expect(order.join('')).toBe('xabbabbaa');
  });

  test('invalid names and weights: an error that names the field', async () => {
    const { api } = setUp();
    const messageOf = (options: object): Promise<string> =>
      api.acquire('key', 1, options).then(
        () => '',
        (error: Error) => error.message,
      );
    expect(await messageOf({ flow: 7 })).toContain('flow');
    expect(await messageOf({ flow: 'x'.repeat(257) })).toContain('at most 256 characters');
    expect(await messageOf({ flow: 'a', flowWeight: 0 })).toContain('flowWeight');
    expect(await messageOf({ flowWeight: 2 })).toContain('given with `flowWeight`');
    expect(await messageOf({ flow: 'a', tenantWeight: 2 })).toContain('tenant');
    expect(await messageOf({ flwo: 'a' })).toContain('flow');
  });
});

describe('fair wait queue', () => {
  interface One {
    readonly arrival: number;
    readonly priority: number;
    readonly cost: number;
    readonly flow: ReturnType<typeof readFlow>;
  }

  const step = fc.record({
    kind: fc.constantFrom('add', 'add', 'serve', 'leave'),
    tenant: fc.option(fc.constantFrom('t', 'u'), { nil: undefined }),
    flow: fc.constantFrom('a', 'b', 'c'),
    weight: fc.constantFrom(1, 2, 4),
    cost: fc.constantFrom(0, 1, 1, 5),
    pick: fc.nat(1000),
  });

  test('front: names the waiters that are served one after the other, after any sequence of steps', () => {
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 120 }), (steps) => {
        const queue = new FairWaitQueue<One>();
        const live: One[] = [];
        const leave = (one: One): void => {
          queue.remove(one);
          live.splice(live.indexOf(one), 1);
        };
        for (const [arrival, { kind, tenant, flow, weight, cost, pick }] of steps.entries()) {
          if (kind === 'add') {
            const options = { flow, flowWeight: weight, ...(tenant && { tenant }) };
            const one = { arrival, priority: 0, cost, flow: readFlow(options) };
            queue.add(one);
            live.push(one);
          } else if (kind === 'leave' && live.length > 0) leave(live[pick % live.length]);
          else if (queue.first) {
            const one = queue.first;
            queue.onServed(one);
            leave(one);
          }
          expect(queue.size).toBe(live.length);
        }
        const expected = queue.front(queue.size + 1);
        const served: One[] = [];
        for (let { first } = queue; first; { first } = queue) {
          served.push(first);
          queue.onServed(first);
          leave(first);
        }
        expect(served).toEqual(expected);
        expect(live).toEqual([]);
      }),
    );
  });

  test('100,000 flows of one call each: state is kept for a bounded number of them', () => {
    const queue = new FairWaitQueue<One>();
    const stay = { arrival: 0, priority: 0, cost: 1, flow: readFlow({ flow: '~' }) };
    queue.add(stay);
    const usedBytes = (): number => {
      setFlagsFromString('--expose-gc');
      runInNewContext('gc')();
      return process.memoryUsage().heapUsed;
    };
    const before = usedBytes();
    for (let n = 1; n <= 100_000; n++) {
      const one = { arrival: n, priority: 0, cost: 1, flow: readFlow({ flow: `f${n}` }) };
      queue.add(one);
      queue.onServed(one);
      queue.remove(one);
    }
    expect(queue.front(9)).toEqual([stay]);
    expect(usedBytes() - before).toBeLessThan(MAX_FLOWS * 4_000); // for all of them it would be 100 times as much
  });
});
