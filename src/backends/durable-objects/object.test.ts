import { describe, expect, test } from 'vitest';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { SluiceObject } from './object.ts';
import type { ObjectStorage } from './platform.ts';
import {
  type CheckReply,
  decode,
  encode,
  type Operation,
  PROTOCOL,
  type ReplyMessage,
  type RuleMessage,
} from './protocol.ts';

const HOUR_MS = 3_600_000;

/** Storage that returns copies, as the platform does. */
class MemoryStorage implements ObjectStorage {
  readonly values = new Map<string, unknown>();
  writes = 0;
  isDeleted = false;
  alarmAt: number | null = null;

  async get(keys: string[]): Promise<Map<string, unknown>> {
    const found = keys.filter((key) => this.values.has(key));
    return new Map(found.map((key) => [key, structuredClone(this.values.get(key))]));
  }

  async put(entries: Record<string, unknown>): Promise<void> {
    this.writes++;
    for (const [key, value] of Object.entries(entries))
      this.values.set(key, structuredClone(value));
  }

  async delete(keys: string[]): Promise<number> {
    return keys.filter((key) => this.values.delete(key)).length;
  }

  async deleteAll(): Promise<void> {
    this.isDeleted = true;
    this.values.clear();
  }

  async list({ limit, startAfter = '' }: { limit: number; startAfter?: string }) {
    const names = [...this.values.keys()].sort().filter((name) => name > startAfter);
    return new Map(names.slice(0, limit).map((name) => [name, this.values.get(name)]));
  }

  async getAlarm(): Promise<number | null> {
    return this.alarmAt;
  }

  async setAlarm(at: number): Promise<void> {
    this.alarmAt = at;
  }
}

function setUp() {
  const clock = new VirtualClock(1_700_000_000_000);
  const storage = new MemoryStorage();
  const create = () => new SluiceObject({ storage }, undefined, { clock, random: () => 0.5 });
  let object = create();
  const ask = async (
    limit: Limit,
    operations: readonly Operation[],
    rule: Partial<RuleMessage> = {},
  ) => {
    const defaults = { since: -Infinity, leaseMs: 30_000, writeDelayMs: 0 };
    const message = { protocol: PROTOCOL, limit: encode(limit), ...defaults, ...rule, operations };
    const request = new Request('http://object', { method: 'POST', body: encode(message) });
    const response = await object.fetch(request);
    return (decode(await response.text()) as ReplyMessage).replies;
  };
  const check = async (limit: Limit, key: string, rule?: Partial<RuleMessage>, lease?: string) => {
    const named = lease === undefined ? {} : { lease };
    const operation = { op: 'check', key, cost: 1, mayReserve: false, ...named } as const;
    const [reply] = await ask(limit, [operation], rule);
    return reply as CheckReply;
  };
  return {
    clock,
    storage,
    ask,
    check,
    /** Evicts the object, as the platform does; the next request creates it again. */
    evict: () => {
      object = create();
    },
    async runAlarm() {
      const { alarmAt } = storage;
      if (alarmAt === null) return;
      clock.advance(Math.max(0, alarmAt - clock.now()));
      storage.alarmAt = null;
      await object.alarm();
    },
  };
}

const bucket = (rate: `${number}/h`, burst: number): Limit => ({ bucket: { rate, burst } });

describe('SluiceObject', () => {
  test('writes what changed before the reply, and nothing for a refusal', async () => {
    const { check, storage, evict } = setUp();
    const limit = bucket('1/h', 2);
    for (const remaining of [1, 0])
      expect((await check(limit, 'k')).decision).toEqual({ verdict: 'allow', remaining });
    expect(storage.writes).toBe(2);
    for (let n = 0; n < 5; n++) expect((await check(limit, 'k')).decision.verdict).toBe('deny');
    expect(storage.writes).toBe(2);
    evict();
    expect((await check(limit, 'k')).decision.verdict).toBe('deny');
  });

  test('writeDelay: changes are written together, after that time', async () => {
    const { check, storage, evict, clock } = setUp();
    const limit = bucket('1/h', 5);
    for (let n = 0; n < 3; n++) await check(limit, 'k', { writeDelayMs: 1000 });
    expect(storage.writes).toBe(0);
    clock.advance(1000);
    expect(storage.writes).toBe(1);
    evict();
    expect((await check(limit, 'k')).decision).toMatchObject({ remaining: 1 });
  });

  test('alarm: deletes keys that decide like new ones, and the storage with the last', async () => {
    const { check, storage, runAlarm } = setUp();
    await check(bucket('1/h', 1), 'slow');
    await check(bucket('3600/h', 1), 'fast');
    await runAlarm();
    expect([...storage.values.keys()]).toEqual(['key:slow']);
    expect(storage.isDeleted).toBe(false);
    expect(storage.alarmAt).not.toBeNull();
    await runAlarm();
    expect([...storage.values.keys()]).toEqual([]);
    expect([storage.isDeleted, storage.alarmAt]).toEqual([true, null]);
    expect((await check(bucket('1/h', 1), 'slow')).decision.verdict).toBe('allow');
    expect(storage.alarmAt).not.toBeNull();
  });

  test('alarm: more keys than it reads at once are all swept', async () => {
    const { ask, check, storage, runAlarm } = setUp();
    const keys = Array.from({ length: 1200 }, (_, n) => `k${n}`);
    for (let from = 0; from < keys.length; from += 100) {
      const part = keys.slice(from, from + 100);
      await ask(
        bucket('3600/h', 1),
        part.map((key) => ({ op: 'check', key, cost: 1, mayReserve: false })),
      );
    }
    await check(bucket('1/h', 1), 'z');
    expect(storage.values.size).toBe(1201);
    await runAlarm();
    expect([...storage.values.keys()]).toEqual(['key:z']);
  });

  test('leases: one that is not renewed ends, an evicted object included, and tokens grow after deletion', async () => {
    const { check, ask, clock, evict, runAlarm, storage } = setUp();
    const limit: Limit = { concurrency: 1 };
    const first = await check(limit, 'k', {}, 'a');
    expect(first.decision.verdict).toBe('allow');
    clock.advance(20_000);
    expect(await ask(limit, [{ op: 'renew', key: 'k', lease: 'a' }])).toEqual([true]);
    clock.advance(20_000);
    evict();
    expect((await check(limit, 'k', {}, 'b')).decision.verdict).toBe('deny');
    clock.advance(10_000);
    expect(await ask(limit, [{ op: 'renew', key: 'k', lease: 'a' }])).toEqual([false]);
    const second = await check(limit, 'k', {}, 'b');
    expect(second.decision.verdict).toBe('allow');
    while (storage.values.size > 0) await runAlarm();
    const third = await check(limit, 'k', {}, 'c');
    const tokens = [first, second, third].map(({ token }) => Number(token));
    expect(tokens[1]).toBeGreaterThan(tokens[0]);
    expect(tokens[2]).toBeGreaterThan(tokens[1]);
  });

  test('leases: a settlement after the lease has ended frees no second place', async () => {
    const { check, ask, clock } = setUp();
    const limit: Limit = { concurrency: 1 };
    await check(limit, 'k', {}, 'a');
    clock.advance(30_000);
    expect((await check(limit, 'k', {}, 'b')).decision.verdict).toBe('allow');
    const settlement = { outcome: 'ok', cost: 1, dueAt: Number.NaN, leaseId: 'a' } as const;
    await ask(limit, [{ op: 'settle', key: 'k', settlement }]);
    expect((await check(limit, 'k', {}, 'c')).decision.verdict).toBe('deny');
  });

  test('ids: an allowed call is charged once, for that time, and a thousand of them are remembered', async () => {
    const { ask, clock, evict } = setUp();
    const limit = bucket('1/h', 2000);
    const checkOnce = async (id: string): Promise<unknown> => {
      const once = { id, forMs: 60_000 };
      const operation = { op: 'check', key: 'k', cost: 1, mayReserve: false, once } as const;
      const [reply] = await ask(limit, [operation]);
      return (reply as CheckReply).decision;
    };
    const first = { verdict: 'allow', remaining: 1999 };
    expect([await checkOnce('a'), await checkOnce('b'), await checkOnce('a')]).toEqual([
      first,
      { verdict: 'allow', remaining: 1998 },
      first,
    ]);
    evict();
    clock.advance(59_999);
    expect(await checkOnce('a')).toEqual(first);
    clock.advance(1);
    expect(await checkOnce('a')).toEqual({ verdict: 'allow', remaining: 1997 });
    for (let n = 0; n < 1000; n++) await checkOnce(`other ${n}`);
    expect(await checkOnce('other 0')).toEqual({ verdict: 'allow', remaining: 1996 });
    expect(await checkOnce('a')).toEqual({ verdict: 'allow', remaining: 996 });
  });

  test('change: a call in flight stays in flight, and its end counts', async () => {
    const { check, ask } = setUp();
    await check({ concurrency: 1 }, 'k', {}, 'a');
    const [two, since] = [{ concurrency: 2 } as const, 1];
    expect((await check(two, 'k', { since }, 'b')).decision).toMatchObject({ remaining: 0 });
    const settlement = { outcome: 'ok', cost: 1, dueAt: Number.NaN, leaseId: 'a' } as const;
    await ask(two, [{ op: 'settle', key: 'k', settlement }], { since });
    expect((await check(two, 'k', { since }, 'c')).decision.verdict).toBe('allow');
    expect((await check(two, 'k', { since }, 'd')).decision.verdict).toBe('deny');
  });

  test('change: a key has refilled at the old rate until the change, and at the new one since', async () => {
    const { check, clock } = setUp();
    const [slow, fast] = [bucket('1/h', 10), bucket('5/h', 10)];
    for (let n = 0; n < 10; n++) await check(slow, 'k');
    clock.advance(HOUR_MS);
    const since = clock.now();
    clock.advance(HOUR_MS);
    expect((await check(fast, 'k', { since })).decision).toEqual({
      verdict: 'allow',
      remaining: 5,
    });
  });

  test('a deployment with another number of steps begins with what the old window counted', async () => {
    const { check } = setUp();
    const window = (steps: number): Limit => ({ window: { limit: 5, per: '1h', steps } });
    for (let n = 0; n < 3; n++) await check(window(16), 'k');
    expect((await check(window(4), 'k')).decision).toMatchObject({ remaining: 1 });
    expect((await check(window(16), 'k')).decision).toMatchObject({ remaining: 1 }); // beside it
  });

  test('a request of another protocol, or with an invalid limit, is a mistake', async () => {
    const { clock, storage } = setUp();
    const object = new SluiceObject({ storage }, undefined, { clock });
    const statusOf = async (message: object) => {
      const body = encode(message);
      return (await object.fetch(new Request('http://o', { method: 'POST', body }))).status;
    };
    expect(await statusOf({ protocol: 'other' })).toBe(400);
    expect(await statusOf({ protocol: PROTOCOL, limit: '{"buket":{}}', operations: [] })).toBe(400);
  });
});
