/** Leases of calls in flight that are renewed too late, or twice: nobody keeps a place for a call that is over. */

import { describe, expect, test } from 'vitest';
import { redisCli, redisServer, startRedis } from '../../../test/support/services.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { redis } from './backend.ts';
import { LEASE_TTL_MS, semaphoreScript } from './semaphore.ts';

const SINK = 'sluice:{api:sink}:concurrency';

describe.skipIf(redisServer() === undefined)('the script of calls in flight', () => {
  test('renewing brings a lease back that Redis has forgotten, unless it is late', async () => {
    const service = await startRedis();
    const run = (when: string, text: string): string =>
      redisCli(service.port, 'EVAL', semaphoreScript(2, false), '1', SINK, when, text);
    const inFlight = (): string => redisCli(service.port, 'ZCARD', SINK);
    try {
      expect(run('by 1', 'egone/1 2')).toContain('late ');
      expect(inFlight()).toBe('0');
      run('', 'ehere/1 2');
      expect(inFlight()).toBe('2');
      const endsAt = (): number => Number(redisCli(service.port, 'ZSCORE', SINK, 'here/1#1'));
      const before = endsAt();
      run('by 1', 'ehere/1 2');
      expect(endsAt()).toBeGreaterThan(before); // its call is under way: it may not have ended
    } finally {
      await service.stop();
    }
  });
});

describe('a call in flight', () => {
  test('that settles while its lease is renewed is settled once more, lest the renewal came after', async () => {
    const clock = new VirtualClock();
    const sent: { text: string; answer: () => void }[] = [];
    const client = {
      script: async () => 'digest',
      eval: async () => [],
      evalsha: (_digest: string, keys: number, ...rest: string[]) =>
        new Promise((resolve) => {
          const [, text] = rest.slice(keys);
          sent.push({ text: text.split(' ')[0], answer: () => resolve([String(clock.now()), 1]) });
        }),
    };
    const api = limiter({
      name: 'api',
      limit: { concurrency: 2 },
      backend: redis(client, { deadline: '1h' }),
      clock,
    });
    const arrived = (n: number) => expect.poll(() => sent.length).toBe(n);
    const asking = api.tryAcquire('sink');
    await arrived(1);
    sent[0].answer();
    const permit = await asking;
    clock.advance(LEASE_TTL_MS / 3);
    await arrived(2);
    if (permit.verdict === 'allow') permit.settle();
    await arrived(3);
    sent[2].answer();
    sent[1].answer();
    await arrived(4);
    const id = sent[0].text.slice(1);
    expect(sent.map(({ text }) => text)).toEqual([`n${id}`, `e${id}`, `s${id}`, `s${id}`]);
    sent[3].answer();
    await api.close();
  });

  test('that nobody began ends nothing, and a batch of less than one asks for none', async () => {
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
    await api.check('sink');
    await api.settle('other'); // not the one that is out
    expect(sent).toBe(1);
    await api.settle('sink');
    expect(sent).toBe(2);
    await api.close();
  });
});
