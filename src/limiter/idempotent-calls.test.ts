import { expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { VirtualClock } from '../testing/index.ts';
import { all } from './composite-limiter.ts';
import { IdempotentCalls } from './idempotent-calls.ts';
import { limiter } from './limiter.ts';

const LIMIT = { bucket: { rate: '1/h', burst: 10 } } as const;

function setUp(options = {}) {
  const clock = new VirtualClock(1_000_000);
  const api = limiter({ limit: LIMIT, clock, random: seededRandom(1), ...options });
  return { clock, api, left: (key = 'k') => api.inspect(key).remaining };
}

test('id: a repeated check gets the same decision and is charged and counted once', () => {
  const { api, left } = setUp();
  const first = api.check('k', 4, { id: 'x' });
  expect(first).toEqual({ verdict: 'allow', remaining: 6 });
  api.check('k', 3);
  expect(api.check('k', 4, { id: 'x' })).toEqual(first);
  expect(left()).toBe(3);
  expect(api.stats()).toMatchObject({ allowed: 2, denied: 0 });
});

test('id: another id, another key and the time after idFor are other calls', () => {
  const { api, clock, left } = setUp({ idFor: '10s' });
  api.check('k', 1, { id: 'x' });
  api.check('k', 1, { id: 'y' });
  expect([left(), left('l')]).toEqual([8, 10]);
  api.check('l', 1, { id: 'x' });
  expect([left(), left('l')]).toEqual([8, 9]);
  clock.advance(9999);
  api.check('k', 1, { id: 'x' });
  expect(left()).toBe(8);
  clock.advance(1);
  api.check('k', 1, { id: 'x' });
  expect(left()).toBe(7);
});

test('id: a key and an id that run together like another pair are another call', () => {
  const { api, left } = setUp();
  api.check('ab', 1, { id: 'c' });
  api.check('a', 1, { id: 'bc' });
  expect([left('ab'), left('a')]).toEqual([9, 9]);
});

test('id: a refusal charges nothing and is decided anew', () => {
  const { api, clock, left } = setUp();
  api.check('k', 10);
  expect(api.check('k', 1, { id: 'x' }).verdict).toBe('deny');
  clock.advance(3_600_000);
  expect(api.check('k', 1, { id: 'x' }).verdict).toBe('allow');
  expect(api.check('k', 1, { id: 'x' }).verdict).toBe('allow');
  expect(left()).toBe(0);
});

test('id: tryAcquire and acquire return the same permit, also while the first call waits', async () => {
  const { api, clock } = setUp({ limit: { concurrency: 1 } });
  const first = api.tryAcquire('k', 1, { id: 'x' });
  expect(api.tryAcquire('k', 1, { id: 'x' })).toBe(first);
  const waiting = [api.acquire('k', 1, { id: 'y' }), api.acquire('k', 1, { id: 'y' })];
  await clock.advanceAsync(10);
  expect(api.stats().waiting).toBe(1);
  if (first.verdict === 'allow') first.settle();
  const [second, third] = await Promise.all(waiting);
  expect(second).toBe(third);
  expect(api.inspect('k').inFlight).toBe(1);
});

test('id: an aborted wait is not remembered', async () => {
  const { api } = setUp({ limit: { concurrency: 1 } });
  api.tryAcquire('k');
  const abort = new AbortController();
  const waiting = api.acquire('k', 1, { id: 'x', signal: abort.signal });
  abort.abort(new Error('enough'));
  await expect(waiting).rejects.toThrow('enough');
  expect(await api.acquire('k', 1, { id: 'x', wait: 0 })).toMatchObject({ reason: 'too-long' });
});

test('id: `all` charges each part once', () => {
  const { api: user, clock } = setUp({ name: 'user' });
  const total = limiter({ name: 'total', limit: LIMIT, clock });
  const both = all([user, { limiter: total, key: '*' }]);
  both.check('k', 2, { id: 'x' });
  both.check('k', 2, { id: 'x' });
  const permit = both.tryAcquire('k', 1, { id: 'y' });
  expect(both.tryAcquire('k', 1, { id: 'y' })).toBe(permit);
  expect([user.inspect('k').remaining, total.inspect('*').remaining]).toEqual([7, 7]);
});

test('id: takeUpTo refuses one, alone and in `all`, and takes nothing', () => {
  const { api, left } = setUp();
  for (const each of [api, all([api])]) {
    const takeUpTo: (...args: unknown[]) => unknown = each.takeUpTo.bind(each) as never;
    expect(() => takeUpTo('k', 4, { id: 'x' })).toThrow('takeUpTo takes no options and no id');
  }
  expect(left()).toBe(10);
});

test('id: peek, an empty id and one of more than 256 characters are errors by name', () => {
  const { api, left } = setUp();
  expect(() => api.peek('k', 1, { id: 'x' })).toThrow('`id` to be left out of peek');
  for (const id of ['', 'x'.repeat(257), 5 as never])
    expect(() => api.check('k', 1, { id })).toThrow('`id` to be a string of 1 to 256 characters');
  expect(left()).toBe(10);
});

test('id: the table is bounded, and forgets the oldest id first', () => {
  const clock = new VirtualClock();
  const calls = new IdempotentCalls(clock, seededRandom(1), 60_000);
  let decided = 0;
  const ask = (id: string) =>
    calls.idempotent('k', id, () => {
      decided++;
      return { verdict: 'allow' };
    });
  for (let n = 0; n < 100_001; n++) ask(`id ${n}`);
  expect(decided).toBe(100_001);
  ask('id 1');
  ask('id 100000');
  expect(decided).toBe(100_001);
  ask('id 0');
  expect(decided).toBe(100_002);
});

test('id: a call whose cost was returned is charged again when it is repeated', () => {
  const { api, left } = setUp();
  const permit = api.tryAcquire('k', 4, { id: 'x' });
  if (permit.verdict === 'allow') permit.settle({ outcome: 'ignored' });
  expect(left()).toBe(10);
  expect(api.tryAcquire('k', 4, { id: 'x' }).verdict).toBe('allow');
  expect(left()).toBe(6);
});

test('id: a settled call keeps its id, so a repeat after a lost reply is charged once', () => {
  const { api, left } = setUp();
  const permit = api.tryAcquire('k', 4, { id: 'x' });
  if (permit.verdict === 'allow') permit.settle();
  expect(api.tryAcquire('k', 4, { id: 'x' })).toBe(permit);
  expect(left()).toBe(6);
});

test('id: concurrency, a repeat after the call has ended needs a place of its own', async () => {
  const { api } = setUp({ limit: { concurrency: 1 } });
  const first = await api.acquire('k', 1, { id: 'x' });
  expect(await api.acquire('k', 1, { id: 'x' })).toBe(first);
  if (first.verdict === 'allow') first.settle();
  const other = api.tryAcquire('k');
  expect(other.verdict).toBe('allow');
  expect(api.tryAcquire('k', 1, { id: 'x' }).verdict).toBe('deny');
});
