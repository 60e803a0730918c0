/** The way to Redis, with a Redis that says what the story needs. */

import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/index.ts';
import { ScriptBatcher } from './batcher.ts';
import type { RedisConnection, ScriptReply } from './client.ts';
import { slotOf } from './slot.ts';

/** Answers each call as it is told, and keeps what it was asked. */
class StandIn implements RedisConnection {
  readonly isCluster: boolean;
  readonly calls: { readonly keys: readonly string[]; readonly args: readonly string[] }[] = [];
  /** How far its clock is ahead of the other one. */
  aheadMs = 0;
  isAway = false;
  /** Answers only when it is told to. */
  isSlow = false;
  readonly #held: (() => void)[] = [];
  /** Says of every call that it came too late. */
  isAlwaysLate = false;
  readonly #clock: VirtualClock;

  constructor(clock: VirtualClock, isCluster = false) {
    this.#clock = clock;
    this.isCluster = isCluster;
  }

  /** Answers the oldest call. */
  answer(): void {
    this.#held.shift()?.();
  }

  async run(
    _script: string,
    keys: readonly string[],
    args: readonly string[],
  ): Promise<ScriptReply> {
    this.calls.push({ keys, args });
    if (this.isAway) throw new Error('away');
    if (this.isSlow) await new Promise<void>((answer) => this.#held.push(answer));
    const now = this.#clock.now() + this.aheadMs + (keys[0] === 'elsewhere' ? 5000 : 0);
    const by = args[0].startsWith('by ') ? Number(args[0].slice(3)) : Infinity;
    return [`${now > by || this.isAlwaysLate ? 'late ' : ''}${now}`, 0, 7];
  }
}

function stage(isCluster = false) {
  const clock = new VirtualClock();
  const redis = new StandIn(clock, isCluster);
  const reached: boolean[] = [];
  const onAvailability = (isAvailable: boolean) => reached.push(isAvailable);
  const batcher = new ScriptBatcher(
    redis,
    { full: 'full', checkOnly: 'check-only' },
    { clock, deadlineMs: 100, onAvailability },
  );
  return { clock, redis, batcher, reached };
}

describe('the way to Redis', () => {
  test('a call says until when somebody waits for it, on the clock of Redis', async () => {
    const { clock, redis, batcher } = stage();
    redis.aheadMs = 5000;
    await batcher.send('x', 'a1');
    clock.advance(10);
    await batcher.send('x', 'a1');
    expect(redis.calls.map(({ args }) => args[0])).toEqual(['', `by ${clock.now() + 5000 + 100}`]);
  });

  test('a clock that was stepped is found out: who asks is sent again, what is told is told once', async () => {
    const { redis, batcher, reached } = stage();
    await batcher.send('x', 'a1');
    redis.aheadMs = 60_000;
    const told = batcher.send('x', 'h3');
    const answer = await batcher.send('x', 'a1');
    await told;
    expect(answer.at).toBeGreaterThanOrEqual(60_000);
    const letters = redis.calls
      .slice(1)
      .map(({ args }) => args.filter((word) => /^[ah]\d/.test(word)));
    expect(letters).toEqual([['h3', 'a1'], ['a1']]);
    expect(reached).toEqual([]);
  });

  test('the nodes of a cluster each have a clock of their own', async () => {
    const { redis, batcher, reached } = stage(true);
    for (const key of ['here', 'elsewhere', 'here', 'elsewhere']) await batcher.send(key, 'a1');
    expect([redis.calls.length, reached]).toEqual([4, []]);
  });

  test('a clock that cannot be caught counts as out of reach', async () => {
    const { redis, batcher, reached } = stage();
    redis.isAlwaysLate = true;
    await expect(batcher.send('x', 'a1')).rejects.toMatchObject({ code: 'UNAVAILABLE' });
    expect([redis.calls.length, reached]).toEqual([2, [false]]);
  });

  test('a slot that is out of reach is left alone; so are all when there are too many', async () => {
    const { redis, batcher, reached } = stage(true);
    redis.isAway = true;
    const keys = Array.from({ length: 100 }, (_, n) => `key ${n}`);
    for (const key of keys) await batcher.send(key, 'a1').catch(() => {});
    const slots = new Set(keys.slice(0, 64).map(slotOf));
    expect(slots.size).toBe(64);
    expect(redis.calls.length).toBe(64);
    expect(reached).toEqual([false]);
    batcher.stop();
  });

  test('what is more than fits on the way waits for those before it, and goes nowhere if they fail', async () => {
    const { redis, batcher } = stage();
    redis.isSlow = true;
    const asks = Array.from({ length: 20 * 512 }, (_, n) => batcher.send(`key ${n}`, 'a1'));
    const failed = Promise.allSettled(asks);
    await expect.poll(() => redis.calls.length).toBe(16);
    redis.answer();
    await expect.poll(() => redis.calls.length).toBe(17);
    redis.isAway = true;
    redis.answer();
    await expect.poll(() => redis.calls.length).toBe(18);
    for (let n = 0; n < 16; n++) redis.answer();
    const kinds = (await failed).map(({ status }) => status);
    expect(kinds.filter((kind) => kind === 'fulfilled').length).toBe(17 * 512);
    expect(redis.calls.length).toBe(18);
    batcher.stop();
  });

  test('a probe asks for the very key that was lost', async () => {
    const { clock, redis, batcher, reached } = stage(true);
    redis.isAway = true;
    await batcher.send('lost', 'a1').catch(() => {});
    redis.isAway = false;
    await batcher.send('other', 'a1');
    expect(batcher.isAvailable).toBe(false);
    clock.advance(60);
    await expect.poll(() => batcher.isAvailable).toBe(true);
    expect(redis.calls.at(-1)?.keys).toEqual(['lost']);
    expect(reached).toEqual([false, true]);
  });
});
