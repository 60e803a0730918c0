import { describe, expect, test } from 'vitest';
import type { OnUnavailable } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { RedisBackend } from './backend.ts';
import { ScriptBatcher } from './batcher.ts';
import type { RedisConnection, ScriptReply } from './client.ts';
import { slotOf } from './slot.ts';

/** A scripted connection that records its calls. */
class ScriptedRedis implements RedisConnection {
  readonly client = this;
  readonly isCluster: boolean;
  readonly calls: { readonly keys: readonly string[]; readonly args: readonly string[] }[] = [];
  /** How far its clock is ahead of the client's. */
  aheadMs = 0;
  isDown = false;
  /** Replies only when `reply()` is called. */
  isHeld = false;
  readonly #held: (() => void)[] = [];
  /** Reports every call as late. */
  isAlwaysLate = false;
  readonly #clock: VirtualClock;

  constructor(clock: VirtualClock, isCluster = false) {
    this.#clock = clock;
    this.isCluster = isCluster;
  }

  async *scan() {}

  /** Replies to the oldest call. */
  reply(): void {
    this.#held.shift()?.();
  }

  async run(
    _script: string,
    keys: readonly string[],
    args: readonly string[],
  ): Promise<ScriptReply> {
    this.calls.push({ keys, args });
    if (this.isDown) throw new Error('connection lost');
    if (this.isHeld) await new Promise<void>((resolve) => this.#held.push(resolve));
    const now = this.#clock.now() + this.aheadMs + (keys[0] === 'other-node' ? 5000 : 0);
    const deadline = args[0].startsWith('by ') ? Number(args[0].slice(3)) : Infinity;
    const isLate = now > deadline || this.isAlwaysLate;
    // Later than that, a one-way command is not executed.
    return [`${isLate ? 'late ' : ''}${now}`, now > deadline + 100_000 ? 'late' : 0, 7];
  }
}

function backendOn(connection: ScriptedRedis, clock: VirtualClock, onUnavailable: OnUnavailable) {
  const random = seededRandom(1);
  const context = {
    ...{ name: 'api', hasExplicitName: true, clock, random, maxKeys: 10, maxWaiters: 10 },
    ...{ keepAlive: false, onCapacity() {}, onAvailability() {}, hasListeners: () => true },
  };
  return new RedisBackend(createPolicy({ bucket: { rate: 1 } }, random), context, {
    ...{ connection, subscriber: undefined, prefix: 'sluice', deadlineMs: 100 },
    ...{ onUnavailable, processes: 1 },
  });
}

function setUp(isCluster = false, hasCallIds = false, isPatient = false) {
  const clock = new VirtualClock(1_000_000);
  const redis = new ScriptedRedis(clock, isCluster);
  const changes: boolean[] = [];
  const onAvailability = (isAvailable: boolean) => changes.push(isAvailable);
  const batcher = new ScriptBatcher(
    redis,
    { full: 'full', checkOnly: 'check-only', hasCallIds },
    { clock, deadlineMs: 100, isPatient, onAvailability },
  );
  return { clock, redis, batcher, changes };
}

describe('script batcher', () => {
  test('a call carries its deadline on the clock of Redis', async () => {
    const { clock, redis, batcher } = setUp();
    redis.aheadMs = 5000;
    await batcher.send('x', 'a1');
    clock.advance(10);
    await batcher.send('x', 'a1');
    const deadlines = redis.calls.map(({ args }) => Number(args[0].slice(3)) - 5000 - 100);
    expect(deadlines.slice(1)).toEqual([clock.now() - 10, clock.now()]);
  });

  test('the first call has a deadline in the past, and its commands are sent again', async () => {
    const { clock, redis, batcher } = setUp();
    const [oneWay, check] = await Promise.all([batcher.send('x', 's1'), batcher.send('x', 'a1')]);
    expect([oneWay.value, check.value]).toEqual([0, 7]);
    expect(redis.calls.map(({ args }) => args)).toEqual([
      ['by 0', 's1', 'a1'],
      [`by ${clock.now() + 100}`, 's1', 'a1'],
    ]);
  });

  test('a first call without a reply is rejected after one deadline, and not sent again', async () => {
    const { clock, redis, batcher } = setUp();
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(1);
    clock.advance(100);
    await expect(sent).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    redis.reply();
    await new Promise((resolve) => setImmediate(resolve));
    expect(redis.calls.length).toBe(1);
    batcher.stop();
  });

  test('the deadline becomes exact with the fastest reply, whatever slower replies say', async () => {
    const { clock, redis, batcher } = setUp();
    await batcher.send('x', 'a1');
    redis.isHeld = true;
    const slow = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(3);
    clock.advance(90);
    redis.reply();
    await slow;
    redis.isHeld = false;
    await batcher.send('x', 'a1');
    expect(redis.calls.at(-1)?.args[0]).toBe(`by ${clock.now() + 100}`);
  });

  test('a call that returns or counts tokens has an id of its own, if the script knows ids', async () => {
    const { redis, batcher } = setUp(false, true);
    for (const command of ['a1', 'n1', 's1', 'h1', 'g1 2']) await batcher.send('x', command);
    const ids = redis.calls.slice(1).map(({ args }) => args[0].split(' ')[2]);
    expect(ids.map((id) => id !== undefined)).toEqual([false, false, true, true, true]);
    expect(new Set(ids).size).toBe(4);
  });

  test('after a clock step, checks are sent again and one-way commands once', async () => {
    const { redis, batcher, changes } = setUp();
    await batcher.send('x', 'a1');
    redis.aheadMs = 60_000;
    const oneWay = batcher.send('x', 'h3');
    const reply = await batcher.send('x', 'a1');
    await oneWay;
    expect(reply.at).toBeGreaterThanOrEqual(60_000);
    const commands = redis.calls
      .slice(2)
      .map(({ args }) => args.filter((word) => /^[ah]\d/.test(word)));
    expect(commands).toEqual([['h3', 'a1'], ['a1']]);
    expect(changes).toEqual([]);
  });

  test('cluster: a clock offset is kept for each node', async () => {
    const { redis, batcher, changes } = setUp(true);
    for (const key of ['node', 'other-node', 'node', 'other-node']) await batcher.send(key, 'a1');
    expect([redis.calls.length, changes]).toEqual([4 + 2, []]); // the first call to each node is sent twice
  });

  test('a clock that steps again on the retry counts as unavailable', async () => {
    const { redis, batcher, changes } = setUp();
    redis.isAlwaysLate = true;
    await expect(batcher.send('x', 'a1')).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect([redis.calls.length, changes]).toEqual([2, [false]]);
  });

  test('cluster: an unavailable slot gets no calls; 64 of them make all slots unavailable', async () => {
    const { redis, batcher, changes } = setUp(true);
    redis.isDown = true;
    const keys = Array.from({ length: 100 }, (_, n) => `key ${n}`);
    for (const key of keys) await batcher.send(key, 'a1').catch(() => {});
    const slots = new Set(keys.slice(0, 64).map(slotOf));
    expect(slots.size).toBe(64);
    expect(redis.calls.length).toBe(64);
    expect(changes).toEqual([false]);
    batcher.stop();
  });

  test('commands beyond the in-flight bound queue, and are rejected unsent if an earlier batch fails', async () => {
    const { redis, batcher } = setUp();
    await batcher.send('x', 'a1');
    redis.calls.length = 0;
    redis.isHeld = true;
    const sent = Array.from({ length: 20 * 512 }, (_, n) => batcher.send(`key ${n}`, 'a1'));
    const settled = Promise.allSettled(sent);
    await expect.poll(() => redis.calls.length).toBe(16);
    redis.reply();
    await expect.poll(() => redis.calls.length).toBe(17);
    redis.isDown = true;
    redis.reply();
    await expect.poll(() => redis.calls.length).toBe(18);
    for (let n = 0; n < 16; n++) redis.reply();
    const statuses = (await settled).map(({ status }) => status);
    expect(statuses.filter((status) => status === 'fulfilled').length).toBe(17 * 512);
    expect(redis.calls.length).toBe(18);
    batcher.stop();
  });

  test('a call that fails after stop() opens no breaker: no event, no probe', async () => {
    const { clock, redis, batcher, changes } = setUp();
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(1);
    batcher.stop();
    clock.advance(100);
    await expect(sent).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    clock.advance(1000);
    expect([redis.calls.length, changes]).toEqual([1, []]);
  });

  test('a reply that its caller cannot read fails this call alone', async () => {
    const { batcher, changes } = setUp();
    await batcher.send('x', 'a1');
    const bad = new Promise((resolve) => {
      const onReply = () => {
        throw new Error('unreadable');
      };
      batcher.submit('x', 'a1', onReply, resolve);
    });
    const good = batcher.send('x', 'a1');
    expect(await bad).toMatchObject({ message: 'unreadable' });
    expect(await good).toMatchObject({ value: 7 });
    expect(changes).toEqual([]);
  });

  test('patient: a Redis that was busy for longer than the deadline is available, and decides its calls', async () => {
    const { clock, redis, batcher, changes } = setUp(false, false, true);
    await batcher.send('x', 'a1');
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(3);
    clock.advance(150);
    redis.reply();
    expect([(await sent).value, changes]).toEqual([0, []]);
    expect(redis.calls.length).toBe(3); // it was not late for Redis either
  });

  test('patient: a first call that Redis answers late tells its clock', async () => {
    const { clock, redis, batcher, changes } = setUp(false, false, true);
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    for (const calls of [1, 2]) {
      await expect.poll(() => redis.calls.length).toBe(calls);
      clock.advance(150);
      redis.reply();
    }
    expect([(await sent).value, redis.calls.length, changes]).toEqual([0, 2, []]);
  });

  test('patient: a Redis that is frozen is unavailable within two deadlines', async () => {
    const { clock, redis, batcher, changes } = setUp(false, false, true);
    await batcher.send('x', 'a1');
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(3);
    clock.advance(200);
    await expect(sent).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect(changes).toEqual([false]);
    batcher.stop();
  });

  test('patient: calls that reach Redis late are sent again, three times at most', async () => {
    const { redis, batcher, changes } = setUp(false, false, true);
    redis.isAlwaysLate = true;
    await expect(batcher.send('x', 'a1')).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect([redis.calls.length, changes]).toEqual([4, [false]]);
    batcher.stop();
  });

  test('cluster: the probe uses the key whose call failed', async () => {
    const { clock, redis, batcher, changes } = setUp(true);
    redis.isDown = true;
    await batcher.send('lost', 'a1').catch(() => {});
    redis.isDown = false;
    await batcher.send('other', 'a1');
    expect(batcher.isAvailable).toBe(false);
    clock.advance(60);
    await expect.poll(() => batcher.isAvailable).toBe(true);
    expect(redis.calls.at(-1)?.keys).toEqual(['lost']);
    expect(changes).toEqual([false, true]);
  });

  test('late replies are reported once a call that was sent after one of them is late too', async () => {
    const clock = new VirtualClock(1_000_000);
    const redis = new ScriptedRedis(clock);
    const late: number[] = [];
    const batcher = new ScriptBatcher(
      redis,
      { full: 'full', checkOnly: 'check-only' },
      { clock, deadlineMs: 100, onAvailability() {}, onLateReplies: (ms) => late.push(ms) },
    );
    const replyAfter = async (ms: number): Promise<void> => {
      clock.advance(ms);
      redis.reply();
      await new Promise((resolve) => setImmediate(resolve));
    };
    redis.isHeld = true;
    const sent = batcher.send('x', 'a1');
    await expect.poll(() => redis.calls.length).toBe(1);
    clock.advance(100);
    await expect(sent).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    clock.advance(50);
    await expect.poll(() => redis.calls.length).toBe(2); // a probe
    await replyAfter(2000);
    await replyAfter(0);
    expect(late).toEqual([]); // a stall: both were sent before a reply arrived
    clock.advance(100);
    await expect.poll(() => redis.calls.length).toBe(3); // the next probe
    await replyAfter(300);
    expect(late).toEqual([300]);
    batcher.stop();
  });
});

test.each([
  ['local', undefined, 60],
  ['deny', true, 60],
  ['allow', true, 60],
  ['local', true, 100],
] as const)(
  'redis backend, onUnavailable %s: decided by the fallback (%s) if Redis is silent for 100 and %s ms',
  async (onUnavailable, fromFallback, ms) => {
    const clock = new VirtualClock(1000);
    const connection = new ScriptedRedis(clock);
    const backend = backendOn(connection, clock, onUnavailable);
    await backend.check('k', 1);
    connection.isHeld = true;
    const checked = backend.check('k', 1);
    await expect.poll(() => connection.calls.length).toBe(3);
    clock.advance(100);
    await new Promise((resolve) => setImmediate(resolve));
    clock.advance(ms);
    await new Promise((resolve) => setImmediate(resolve));
    connection.reply();
    expect((await checked).fromFallback).toBe(fromFallback);
    await backend.close();
  },
);

test('redis backend: a check that times out after close is denied, whatever onUnavailable says', async () => {
  const clock = new VirtualClock();
  const connection = new ScriptedRedis(clock);
  connection.isHeld = true;
  const backend = backendOn(connection, clock, 'allow');
  const checked = backend.check('k', 1);
  await expect.poll(() => connection.calls.length).toBe(1);
  await backend.close();
  clock.advance(100);
  expect((await checked).decision.verdict).toBe('deny');
});
