import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/index.ts';
import { DenialRecorder } from './denial-recorder.ts';

const HOUR_MS = 3_600_000;

function setUp() {
  const clock = new VirtualClock(50 * HOUR_MS);
  const denials = new DenialRecorder(clock);
  const hasher = createHasher([1, 2], 'latin1');
  const limiter = (name: string) => ({ name, inspect: () => ({ remaining: 0.25 }) });
  const hashOf = (key: string) => {
    hasher.hash(key);
    return { low: hasher.low, high: hasher.high };
  };
  const deny = (key: string, name = 'api', rule?: string, retryAfterMs = 750): void =>
    denials.recordLocal(
      limiter(name),
      { key, cost: 2, ...hashOf(key) },
      { verdict: 'deny', retryAfterMs, ...(rule && { rule }) },
    );
  const denyBytes = (key: string): void => {
    const bytes = Buffer.from(`<${key}>`, 'latin1');
    const decision = { verdict: 'deny', retryAfterMs: 1 } as const;
    denials.recordBytes(limiter('api'), hashOf(key), bytes, 1, bytes.length - 1, decision);
  };
  return { clock, denials, deny, denyBytes, hashOf };
}

describe('denial recorder', () => {
  test('a denied call: key, limit, rule, cost, what was left and when to retry', () => {
    const { denials, deny, clock } = setUp();
    deny('caf\xc3\xa9', 'api', 'bucket-2');
    expect(denials.recent({ max: 10 })).toEqual([
      {
        key: 'café',
        limit: 'api',
        rule: 'bucket-2',
        denied: 1,
        firstAt: clock.now(),
        lastAt: clock.now(),
        cost: 2,
        remaining: 0.25,
        retryAfterMs: 750,
      },
    ]);
  });

  test('throttled for longest: since the last gap of 20 s, and no key that is quiet now', () => {
    const { denials, deny, clock } = setUp();
    const start = clock.now();
    const denyFor = (seconds: number, keys: readonly string[]): void => {
      for (let n = 0; n < seconds; n++, clock.advance(1000)) for (const key of keys) deny(key);
    };
    denyFor(30, ['early', 'quiet']);
    clock.advance(25_000);
    deny('early');
    denyFor(60, ['early', 'late']);
    expect(denials.longest(10)).toEqual([
      { key: 'early', limit: 'api', since: start + 55_000, denied: 61 },
      { key: 'late', limit: 'api', since: start + 55_000, denied: 60 },
    ]);
    clock.advance(15_000);
    denyFor(5, ['late']);
    expect(denials.longest(1)).toEqual([
      { key: 'late', limit: 'api', since: start + 55_000, denied: 65 },
    ]);
    clock.advance(25_000);
    expect(denials.longest(10)).toEqual([]);
  });

  test('a flood of one key: one entry per 10 s, and other keys stay visible', () => {
    const { denials, deny, clock } = setUp();
    deny('rare');
    for (let n = 0; n < 60_000; n++) {
      deny('flood');
      if (n % 1000 === 0) clock.advance(1000);
    }
    const recent = denials.recent({ max: 1000 });
    expect(recent).toHaveLength(8);
    expect(recent.at(-1)).toMatchObject({ key: 'rare', denied: 1 });
    expect(recent.reduce((sum, { denied }) => sum + denied, 0)).toBe(60_001);
  });

  test('a limit with several rules: one entry per rule and 10 s, each with its own wait', () => {
    const { denials, deny, clock } = setUp();
    deny('alice', 'api', 'bucket', 2);
    for (let n = 0; n < 7; n++) deny('alice', 'api', 'bucket-2', 58_000);
    clock.advance(1000);
    deny('alice', 'api', 'bucket', 3);
    const [bucket, second, ...more] = denials.recent({ max: 9 });
    expect(bucket).toMatchObject({ rule: 'bucket', denied: 2, retryAfterMs: 2 });
    expect(second).toMatchObject({ rule: 'bucket-2', denied: 7, retryAfterMs: 58_000 });
    expect(more).toEqual([]);
    expect(denials.longest(9)).toMatchObject([{ key: 'alice', denied: 9 }]);
    expect(denials.top('now', 9, 9)).toMatchObject([{ denied: 9, keys: [{ denied: 9 }] }]);
  });

  test('a lock after other denials of the same 10 s: an entry of its own, with the end of the lock', () => {
    const { denials, deny, clock, hashOf } = setUp();
    deny('alice');
    const locked = { verdict: 'deny', retryAfterMs: 60_000, reason: 'locked' } as const;
    denials.record('api', undefined, { key: 'alice', cost: 1, ...hashOf('alice') }, locked);
    expect(denials.recent({ max: 9 })).toMatchObject([
      { rule: 'lockout', lockedUntil: clock.now() + 60_000 },
      { denied: 1, retryAfterMs: 750 },
    ]);
  });

  test('a flood of one key by alternating rules: other keys stay visible, in bounded memory', () => {
    const { denials, deny, clock } = setUp();
    deny('rare');
    for (let n = 0; n < 60_000; n++) {
      deny('flood', 'api', `bucket-${n % 100}`);
      if (n % 1000 === 0) clock.advance(1000);
    }
    const recent = denials.recent({ max: 1000 });
    expect(recent.at(-1)).toMatchObject({ key: 'rare', denied: 1 });
    expect(recent.length).toBe(1 + 7 * 8);
  });

  test('a flood of different keys: the record before it stays for more than 10 s', () => {
    const { denials, deny, clock, hashOf } = setUp();
    deny('rare');
    for (let n = 0; n < 100_000; n++) {
      deny(`k${n}`);
      if (n % 100 === 0) clock.advance(11);
    }
    expect(denials.recent({ hash: hashOf('rare'), max: 9 })).toHaveLength(1);
    expect(denials.recent({ max: 10_000 }).length).toBeLessThanOrEqual(512);
  });

  test('a flood at one limit does not push out the denials of another', () => {
    const { denials, deny, clock, hashOf } = setUp();
    deny('alice', 'login');
    for (let n = 0; n < 100_000; n++) {
      deny(`k${n}`);
      clock.advance(5);
    }
    expect(denials.recent({ hash: hashOf('alice'), max: 9 })).toMatchObject([{ limit: 'login' }]);
  });

  test('top now: covers the last 10 to 20 s; top of the hour: the last one to two hours', () => {
    const { denials, deny, clock } = setUp();
    for (let n = 0; n < 7; n++) deny('early');
    clock.advance(9999);
    for (let n = 0; n < 3; n++) deny('late');
    const keysOf = (span: 'now' | 'hour') =>
      denials.top(span, 9, 9).flatMap(({ keys }) => keys.map(({ key, denied }) => [key, denied]));
    const both = [
      ['early', 7],
      ['late', 3],
    ];
    expect(keysOf('now')).toEqual(both);
    clock.advance(10_000);
    expect(keysOf('now')).toEqual(both);
    clock.advance(10_000);
    expect(keysOf('now')).toEqual([]);
    expect(keysOf('hour')).toEqual(both);
    deny('late');
    clock.advance(HOUR_MS);
    expect(keysOf('hour')).toEqual([
      ['early', 7],
      ['late', 4],
    ]);
    clock.advance(2 * HOUR_MS);
    expect(keysOf('hour')).toEqual([]);
  });

  test('queries: by limit, its overrides included, by key and by time', () => {
    const { denials, deny, clock, hashOf } = setUp();
    deny('alice', 'api');
    deny('alice', 'api[alice]');
    deny('bob', 'login');
    clock.advance(60_000);
    deny('alice', 'login');
    const limits = (query: object) =>
      denials.recent({ max: 9, ...query }).map(({ limit }) => limit);
    expect(limits({ limit: 'api' })).toEqual(['api', 'api[alice]']);
    expect(limits({ hash: hashOf('alice') })).toEqual(['login', 'api', 'api[alice]']);
    expect(limits({ since: clock.now() - 1000 })).toEqual(['login']);
    expect(limits({ max: 1 })).toEqual(['login']);
    expect(denials.countsOf(hashOf('alice')).map(({ limit, denied }) => [limit, denied])).toEqual([
      ['api', 1],
      ['api[alice]', 1],
      ['login', 1],
    ]);
  });

  test('keys in bytes: a key that is denied often has its name, even after a million others', () => {
    const { denials, denyBytes, clock } = setUp();
    for (let n = 0; n < 200_000; n++) {
      denyBytes(`other-${n}`);
      if (n % 20 === 0) denyBytes('often');
      if (n % 1000 === 0) clock.advance(10);
    }
    expect(denials.top('now', 1, 1)[0].keys[0].key).toBe('often');
  });

  test('a million keys of 4 KB at 150 limits: records are bounded, and later limits share one', () => {
    const { denials, clock } = setUp();
    const bytes = Buffer.alloc(4096, 'x');
    const decision = { verdict: 'deny', retryAfterMs: 1 } as const;
    const limiters = Array.from({ length: 150 }, (_, n) => ({
      name: `limit-${n}`,
      inspect: () => ({ remaining: 0 }),
    }));
    for (let n = 0; n < 1_000_000; n++) {
      const hash = { low: Math.imul(n, 0x9e3779b1), high: ~n };
      denials.recordBytes(limiters[n % 150], hash, bytes, 0, 4096, decision);
      if (n % 1000 === 0) clock.advance(30);
    }
    const top = denials.top('hour', 1000, 1000);
    expect(top.length).toBe(101);
    expect(top[0]).toMatchObject({ reason: 'further-limits' });
    expect(top.reduce((sum, { denied }) => sum + denied, 0)).toBe(1_000_000);
    const recent = denials.recent({ max: 1_000_000 });
    expect(recent.length).toBeLessThanOrEqual(101 * 512);
    expect(recent.every(({ key }) => key.length === 200)).toBe(true);
    clock.advance(600_001);
    const alice = { key: 'alice', cost: 1, low: 1, high: 1 };
    denials.record('new', undefined, alice, decision);
    expect(denials.recent({ limit: 'new', max: 9 })).toMatchObject([{ key: 'alice' }]);
  });
});
