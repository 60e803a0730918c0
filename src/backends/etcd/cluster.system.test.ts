import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { addressOf, etcdCall as call } from '../../../test/support/etcd-gateway.ts';
import { etcdServer, type Service, startEtcdCluster } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { etcd } from './options.ts';

describe.skipIf(etcdServer() === undefined)('etcd backend, three members', () => {
  let members: Service[];
  let api: RemoteLimiter;
  const DEADLINE_MS = 900;
  beforeEach(async () => {
    members = await startEtcdCluster();
    const backend = etcd({ endpoints: members.map(addressOf), deadline: DEADLINE_MS });
    api = limiter({ name: 'api', limit: { spacing: { every: 10 } }, backend });
    await isAcquired(); // a check whose reply is later than the start tolerance is refused
  }, 60_000);
  afterEach(async () => {
    await api?.close();
    await Promise.all(members.map((member) => member.stop()));
  });

  const leader = async (): Promise<Service> => {
    for (const member of members) {
      const { leader: id, header } = await call(member, 'maintenance/status');
      if (id === header?.member_id) return member;
    }
    throw new Error('no member is the leader');
  };

  const isAcquired = (): Promise<void> =>
    vi.waitFor(
      async () => {
        const result = await api.acquire('x', 1, { wait: 1000 });
        expect(result.verdict).toBe('allow');
      },
      { timeout: 10_000, interval: 10 },
    );

  test.each(['kill', 'pause'] as const)(
    'recovers from the loss of the leader: %s',
    async (fault) => {
      const lost = await leader();
      await lost[fault]();
      await isAcquired();
      if (fault === 'kill') await lost.restart();
      else lost.resume();
      await isAcquired();
    },
    60_000,
  );

  test('without a quorum every call is refused within the deadline', async () => {
    await members[1].kill();
    await members[2].kill();
    const times: number[] = [];
    for (let n = 0; n < 20; n++) {
      const since = performance.now();
      const checks = [api.check('x'), api.check('new'), api.tryAcquire('y')];
      for (const { verdict } of await Promise.all(checks)) expect(verdict).toBe('deny');
      times.push(performance.now() - since);
    }
    expect(times.filter((ms) => ms > DEADLINE_MS + 200).length).toBeLessThan(5); // a stall hits one of them
    await members[2].restart();
    await isAcquired();
  }, 60_000);
});
