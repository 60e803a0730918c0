import { describe, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { MemoryHub } from '../peers/memory-transport.ts';
import { peers } from '../peers/options.ts';
import { type GroupsMembership, groups } from './options.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

const LIMIT: Limit = { lockout: { after: 7, lock: ['1m', '5m'] } };
const WEIGHTS = { eu: { weight: 2 }, us: { weight: 1 } };

function world() {
  const clock = new VirtualClock(1_000_000);
  const sent: (readonly BorrowRequest[])[] = [];
  const members = new Map<string, GroupsMembership>();
  const transport: GroupTransport = {
    async borrow(to, requests) {
      sent.push(requests);
      return (await members.get(to)?.lend(requests)) ?? [];
    },
  };
  const start = (self: string, bucket?: ReturnType<typeof peers>, limit = LIMIT) => {
    const options = { clock, transport, self, groups: WEIGHTS };
    const group = groups(bucket ? { ...options, bucket } : options);
    members.set(self, group);
    return { group, login: limiter({ name: 'login', limit, backend: group, clock }) };
  };
  return { clock, sent, start };
}

describe('groups: lock-out', () => {
  test('each group allows its fraction of the attempts, and locks by itself', async () => {
    const { clock, sent, start } = world();
    const [eu, us] = [start('eu'), start('us')];
    const guesses = [eu, us].map(({ login }) => {
      let allowed = 0;
      for (let n = 0; n < 20; n++) if (login.check('alice').verdict === 'allow') allowed++;
      return allowed;
    });
    expect(guesses).toEqual([4, 2]); // of 7
    expect(eu.login.check('alice')).toMatchObject({ verdict: 'deny', reason: 'locked' });
    await clock.advanceAsync(1000);
    expect(sent).toEqual([]); // nothing was borrowed
    expect(await us.group.lend([{ limit: 'login', key: 'bob', tokens: 1 }])).toEqual([0]);
    expect(us.login.inspect('bob').failures).toBe(0); // nothing was lent
    eu.login.report('alice', 'success');
    expect(eu.login.check('alice').verdict).toBe('allow');
    expect(us.login.check('alice').verdict).toBe('deny');
  });

  test('peers of a region share the part of their group', async () => {
    const { clock, start } = world();
    const hub = new MemoryHub({ clock, delayMs: [1, 3] });
    const join = (address: string) =>
      peers({ transport: hub.transport(address), key: 'a key for the tests', clock });
    const [a, b] = [start('eu', join('a')), start('eu', join('b'))];
    await clock.advanceAsync(3000);
    for (const { login } of [a, b, a]) {
      expect(login.check('alice').verdict).toBe('allow');
      login.report('alice', 'failure');
      await clock.advanceAsync(200);
    }
    expect(b.login.inspect('alice')).toMatchObject({ failures: 3, remaining: 1 });
    expect(b.login.check('alice').verdict).toBe('allow');
    await clock.advanceAsync(200);
    expect(a.login.check('alice')).toMatchObject({ verdict: 'deny', reason: 'locked' });
    b.login.report('alice', 'success');
    await clock.advanceAsync(200);
    expect(a.login.check('alice').verdict).toBe('allow');
  });

  test('a changed limit keeps its locks, and the group has the same fraction of it', () => {
    const { start } = world();
    const { login } = start('eu');
    for (let n = 0; n < 4; n++) login.check('alice');
    login.change({ lockout: { after: 3, lock: '1m' } });
    expect(login.check('alice').verdict).toBe('deny');
    expect(login.inspect('bob').remaining).toBe(2);
  });

  test.each<[Limit, RegExp]>([
    [
      { lockout: { after: 2 } },
      /`limit.lockout.after` to be at least 3, so that group us has one token of it, got 2/,
    ],
    [
      { all: [{ bucket: { rate: 9 } }, { lockout: { after: 9, on: 'refusal' } }] },
      /`limit` to be a bucket, a window or a lockout on failures/,
    ],
  ])('a lock-out without a part for the group is refused: %j', (limit, message) => {
    const create = () => world().start('us', undefined, limit);
    expect(create).toThrow(ConfigError);
    expect(create).toThrow(message);
  });
});
