import { describe, expect, test } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { redisCli, redisServer } from '../../../test/support/services.ts';
import { VirtualFleet } from '../../../test/support/virtual-fleet.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { throttle } from '../../throttle/throttle.ts';
import { LEASE_TTL_MS, semaphoreScript } from './lua-semaphore.ts';
import { redis } from './options.ts';

const SINK = 'sluice:{api:sink}:concurrency';

describe.skipIf(redisServer() === undefined)('semaphore script', () => {
  test('a renewal restores a lease that Redis lost, unless it is late', async () => {
    const service = await borrowRedis();
    const run = (time: string, command: string): string =>
      redisCli(service.port, 'EVAL', semaphoreScript(2, undefined), '1', SINK, time, command);
    const inFlight = (): string => redisCli(service.port, 'ZCARD', SINK);
    try {
      expect(run('by 1', 'egone/1 2')).toContain('late ');
      expect(inFlight()).toBe('0');
      run('', 'ehere/1 2');
      expect(inFlight()).toBe('2');
      const endsAt = (): number => Number(redisCli(service.port, 'ZSCORE', SINK, 'here/1#1'));
      const before = endsAt();
      run('by 1', 'ehere/1 2');
      expect(endsAt()).toBeGreaterThan(before); // its call is still running
    } finally {
      await service.stop();
    }
  });

  test('units that are free are taken once, also if the command is sent again, and settled in parts', async () => {
    const service = await borrowRedis();
    const run = (command: string): string =>
      redisCli(service.port, 'EVAL', semaphoreScript(5, undefined), '1', SINK, '', command);
    const inFlight = (): string => redisCli(service.port, 'ZCARD', SINK);
    try {
      run('na/1 2');
      expect(run('tb/1 9')).toMatch(/\n3 \d+/);
      expect(run('tb/1 9')).toMatch(/\n3 \d+/);
      expect(inFlight()).toBe('5');
      expect(run('tc/1 1')).toMatch(/\n0$/);
      run('sb/1 3 1');
      run('sb/1 3 1'); // sent again
      expect(inFlight()).toBe('3');
      run('sb/1 1 0');
      expect(inFlight()).toBe('2');
    } finally {
      await service.stop();
    }
  });
});

describe.skipIf(redisServer() === undefined)('semaphore of two processes', () => {
  test.each([
    ['alone', false, false],
    ['in a fair queue', true, false],
    ['within all', false, true],
  ])(
    '%s: calls beyond permitTimeout and a lease keep their places',
    async (_, fairQueue, joins) => {
      const service = await borrowRedis();
      const fleet = await VirtualFleet.start(service.port);
      const [permitTimeout, runMs] = [1000, 3 * LEASE_TTL_MS];
      const counts = { running: 0, peak: 0, done: 0 };
      try {
        const members = [1, 2].map(() => {
          const { client, clock } = fleet.process(2);
          const backend = redis(client, { fairQueue, deadline: '2s' });
          const options = { permitTimeout, clock, backend };
          const own = limiter({ ...options, name: 'api', limit: { concurrency: 2 } });
          const rate = { bucket: { rate: '99/s', burst: 99 } } as const;
          const api = joins ? all([own, limiter({ ...options, name: 'rate', limit: rate })]) : own;
          const run = async (): Promise<void> => {
            counts.peak = Math.max(counts.peak, ++counts.running);
            await new Promise<void>((end) => clock.wakeAt?.(clock.now() + runMs, end, false));
            counts.running--;
            counts.done++;
          };
          return { api, own, call: throttle(run, { limiter: api, wait: true }) };
        });
        const calls = [0, 1, 0, 1, 0, 1].map((n) => members[n].call());
        await fleet.run(3.5 * runMs);
        await Promise.all(calls);
        expect(counts).toEqual({ running: 0, peak: 2, done: 6 });
        for (const { own } of members)
          expect(own.stats()).toMatchObject({ expiredPermits: 0, held: 0 });
        const closing = Promise.all(members.map(({ api }) => api.close()));
        await fleet.run(1000);
        await closing;
      } finally {
        fleet.stop();
        await service.stop();
      }
    },
  );
});

describe('semaphore backend', () => {
  test('a call that settles during a renewal is settled again, in case the renewal arrived last', async () => {
    const clock = new VirtualClock();
    const sent: { text: string; reply: () => void }[] = [];
    const client = {
      script: async () => 'digest',
      eval: async () => [],
      evalsha: (_digest: string, keys: number, ...rest: string[]) =>
        new Promise((resolve) => {
          const [, text] = rest.slice(keys);
          sent.push({ text: text.split(' ')[0], reply: () => resolve([String(clock.now()), 1]) });
        }),
    };
    const api = limiter({
      name: 'api',
      limit: { concurrency: 2 },
      backend: redis(client, { deadline: '1h' }),
      clock,
    });
    const arrived = (n: number) => expect.poll(() => sent.length).toBe(n);
    const acquiring = api.tryAcquire('sink');
    await arrived(1);
    sent[0].reply();
    const permit = await acquiring;
    clock.advance(LEASE_TTL_MS / 3);
    await arrived(2);
    if (permit.verdict === 'allow') permit.settle();
    await arrived(3);
    sent[2].reply();
    sent[1].reply();
    await arrived(4);
    const id = sent[0].text.slice(1);
    expect(sent.map(({ text }) => text)).toEqual([`n${id}`, `e${id}`, `s${id}`, `s${id}`]);
    sent[3].reply();
    await api.close();
  });

  test('settling an unknown call and taking 0 send nothing', async () => {
    let sent = 0;
    const client = {
      script: async () => 'digest',
      eval: async () => [],
      evalsha: async () => {
        sent++;
        return ['0', 1];
      },
    };
    const backend = redis(client);
    const api = limiter({ name: 'api', limit: { concurrency: 2 }, backend });
    await api.settle('sink');
    await api.settle('sink', { outcome: 'ignored' });
    expect(await api.takeUpTo('sink', 0)).toBe(0);
    expect(sent).toBe(0);
    await api.check('sink', 1, { willSettle: true });
    await api.settle('other'); // another key
    expect(sent).toBe(1);
    await api.settle('sink');
    expect(sent).toBe(2);
    await api.close();
  });
});
