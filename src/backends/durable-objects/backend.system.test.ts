import { rmSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  namespaceOf,
  startObjects,
  workerdFolder,
} from '../../../test/support/durable-objects/workerd.ts';
import { whilePaused } from '../../../test/support/paused.ts';
import { remoteLimiterContract } from '../../../test/support/remote-limiter-contract.ts';
import { hasRuntimes } from '../../../test/support/runtimes.ts';
import type { Service } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { Permit } from '../../limiter/permit.ts';
import type { Limit } from '../../policies/limit.ts';
import { type DurableObjectsOptions, durableObjects } from './options.ts';

/** Long enough for a loaded machine. */
const DEADLINE_MS = 700;

describe.skipIf(!hasRuntimes())('Durable Objects', () => {
  let folder = '';
  let objects: Service;
  let testNumber = 0;
  const limiters: RemoteLimiter[] = [];

  const shared = (limit: Limit, options: DurableObjectsOptions = {}, queue = {}) => {
    const backend = durableObjects(namespaceOf(objects, `${testNumber} `), options);
    const api = limiter({ name: 'api', limit, backend, queue });
    limiters.push(api);
    return api;
  };

  beforeAll(async () => {
    folder = workerdFolder();
    objects = await startObjects(folder);
  }, 60_000);
  afterAll(async () => {
    await objects?.stop();
    rmSync(folder, { recursive: true, force: true });
  });
  beforeEach(() => {
    testNumber++;
  });
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
  });

  remoteLimiterContract({
    createShared: (limit, { isSecondProcess: _, deadlineMs, queue, ...options } = {}) =>
      shared(limit, { ...options, ...(deadlineMs && { deadline: deadlineMs }) }, queue),
    whileUnavailable: (act) => whilePaused(objects, act),
  });

  const verdictsOf = async (api: RemoteLimiter, calls: number): Promise<string[]> => {
    const decisions = await Promise.all(Array.from({ length: calls }, () => api.check('k')));
    return decisions.map(({ verdict }) => verdict);
  };

  test('an object that was killed knows what was spent, and which calls are in flight', async () => {
    const bucket = shared({ bucket: { rate: '1/h', burst: 4 } }, { deadline: '5s' });
    const concurrency = shared({ concurrency: 2 }, { deadline: '5s' });
    expect(await verdictsOf(bucket, 3)).toEqual(['allow', 'allow', 'allow']);
    const permit = await concurrency.tryAcquire('k');
    await objects.kill();
    await objects.restart();
    expect((await bucket.inspect('k'))?.remaining).toBe(1);
    expect(await concurrency.inspect('k')).toMatchObject({ inFlight: 1 });
    expect(await verdictsOf(bucket, 2)).toEqual(['allow', 'deny']);
    if (permit.verdict === 'allow') permit.settle();
    await vi.waitFor(async () =>
      expect(await concurrency.inspect('k')).toMatchObject({ inFlight: 0 }),
    );
  });

  test('writeDelay: a crash forgets no more than was granted since the last write', async () => {
    const limit: Limit = { bucket: { rate: '1/h', burst: 9 } };
    const api = shared(limit, { deadline: '5s' });
    const delayed = shared(limit, { deadline: '5s', writeDelay: '1h' });
    await api.check('k', 2);
    await delayed.check('k', 3);
    expect((await delayed.inspect('k'))?.remaining).toBe(4);
    await objects.kill();
    await objects.restart();
    expect((await delayed.inspect('k'))?.remaining).toBe(7);
  });

  test('concurrency: processes share the calls in flight, a settled one makes room, tokens grow', async () => {
    const [a, b] = [shared({ concurrency: 2 }), shared({ concurrency: 2 })];
    const first = await a.tryAcquire('k');
    const second = await b.tryAcquire('k');
    if (!(first instanceof Permit && second instanceof Permit)) return expect.unreachable();
    expect(await a.tryAcquire('k')).toMatchObject({ verdict: 'deny', reason: 'not-now' });
    const waiting = a.acquire('k');
    second.settle();
    const third = await waiting;
    if (!(third instanceof Permit)) return expect.unreachable();
    const tokens = [first, second, third].map(({ fencingToken }) => Number(fencingToken));
    expect(tokens).toEqual(tokens.toSorted((x, y) => x - y));
    expect(new Set(tokens).size).toBe(3);
    expect(await b.inspect('k')).toMatchObject({ inFlight: 2 });
    await b.change({ concurrency: 3 });
    expect(await b.tryAcquire('k')).toMatchObject({ verdict: 'allow' });
    first.settle();
    await a.close(); // releases its leases
    await vi.waitFor(async () => expect(await b.inspect('k')).toMatchObject({ inFlight: 1 }));
  });

  test('id: two processes are charged once, and what the call did not use is returned once', async () => {
    const limit: Limit = { bucket: { rate: 0.001, burst: 20 } };
    const [a, b] = [shared(limit), shared(limit)];
    await a.check('k', 6);
    for (const api of [a, b]) {
      const permit = await api.tryAcquire('k', 8, { id: 'x' });
      expect(permit).toMatchObject({ verdict: 'allow', remaining: 6 });
      if (permit.verdict === 'allow') permit.settle({ used: 3 });
    }
    await vi.waitFor(async () => expect((await a.inspect('k'))?.remaining).toBe(11));
    await b.check('k', 1); // processed after the second settlement
    expect((await a.inspect('k'))?.remaining).toBe(10);
  });

  test('id: a call settled as ignored is forgotten, and a reserved slot keeps its due time', async () => {
    const limit: Limit = { spacing: { every: '1h', reserve: 2 } };
    const [a, b] = [shared(limit), shared(limit)];
    await a.check('k');
    const [first, second] = [
      await a.check('k', 1, { id: 'x' }),
      await b.check('k', 1, { id: 'x' }),
    ];
    if (first.verdict !== 'wait' || second.verdict !== 'wait') return expect.unreachable();
    expect(Math.abs(Number(first.dueAt) - Number(second.dueAt))).toBeLessThan(1);
    expect((await a.inspect('k'))?.reserved).toBe(1);
    const bucket = shared({ bucket: { rate: 0.001, burst: 20 } });
    for (const remaining of [16, 16]) {
      const permit = await bucket.tryAcquire('b', 4, { id: 'x' });
      expect(permit).toMatchObject({ remaining });
      if (permit.verdict === 'allow') permit.settle({ outcome: 'ignored' });
      await vi.waitFor(async () => expect((await bucket.inspect('b'))?.remaining).toBe(20));
    }
  });

  test('lockout on refusals: a call that waits counts as one refusal when it gives up', async () => {
    const bucket = { rate: 0.001, burst: 1 };
    const limit: Limit = {
      all: [{ bucket }, { lockout: { on: 'refusal', after: 2, lock: '1h' } }],
    };
    const api = shared(limit);
    await api.check('k');
    expect(await api.acquire('k', 1, { wait: '1s' })).toMatchObject({ reason: 'too-long' });
    await vi.waitFor(async () => expect(await api.inspect('k')).toMatchObject({ failures: 1 }));
  });

  test('adaptive: the objects learn from the calls of all processes', async () => {
    const limit: Limit = { adaptive: { rule: 'aimd', initial: 8, max: 20 } };
    const [a, b] = [shared(limit), shared(limit)];
    const permits = await Promise.all([a, b, a, b].map((api) => api.tryAcquire('k')));
    expect(await a.inspect('k')).toMatchObject({ inFlight: 4, limit: 8 });
    for (const permit of permits)
      if (permit.verdict === 'allow') permit.settle({ outcome: 'busy' });
    await vi.waitFor(async () =>
      expect(await b.inspect('k')).toMatchObject({ inFlight: 0, limit: 7 }),
    );
  });

  test('shards: keys of one shard are independent, and one request carries a tick', async () => {
    const namespace = namespaceOf(objects, `${testNumber} `);
    const get = vi.fn(namespace.get);
    const backend = durableObjects({ ...namespace, get }, { shards: 1, deadline: '5s' });
    const api = limiter({ name: 'api', limit: { bucket: { rate: '1/h', burst: 1 } }, backend });
    limiters.push(api);
    const keys = Array.from({ length: 200 }, (_, n) => `key ${n}`);
    const decisions = await Promise.all([...keys, 'key 7'].map((key) => api.check(key)));
    expect(decisions.filter(({ verdict }) => verdict === 'allow').length).toBe(200);
    expect(get).toHaveBeenCalledTimes(2); // at most 128 operations each
  });

  test('onUnavailable: a local fallback begins with what was left, and is counted afterwards', async () => {
    const limit: Limit = { bucket: { rate: '1/h', burst: 6 } };
    const api = shared(limit, { deadline: DEADLINE_MS, onUnavailable: 'local' });
    expect(await verdictsOf(api, 3)).toEqual(['allow', 'allow', 'allow']);
    objects.pause();
    try {
      expect((await api.check('k')).verdict).toBe('allow'); // the object receives the release when it is available again
      expect(await verdictsOf(api, 3)).toEqual(['allow', 'allow', 'deny']);
      expect(api.stats()).toMatchObject({ isAvailable: false, fallback: 4 });
    } finally {
      objects.resume();
    }
    await vi.waitFor(() => expect(api.stats().isAvailable).toBe(true), 5000);
    await vi.waitFor(async () => expect((await api.inspect('k'))?.remaining).toBe(0));
  });

  test('a class other than SluiceObject is a mistake and no outage', async () => {
    const namespace = namespaceOf(objects, '', { other: 'yes' });
    const api = limiter({ limit: { bucket: { rate: 1 } }, backend: durableObjects(namespace) });
    await expect(api.check('k')).rejects.toThrow('bind the class SluiceObject');
    expect(await api.acquire('k')).toMatchObject({ verdict: 'deny', reason: 'never' });
    expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
  });
});
