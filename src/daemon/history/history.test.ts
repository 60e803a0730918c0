import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { runAtOnce } from '../../core/steps.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { readLimits } from '../config/limits.ts';
import { DenialRecorder } from '../denials/denial-recorder.ts';
import { NO_PATTERNS } from '../keys/pattern-table.ts';
import { LimiterRegistry } from '../router/limiter-registry.ts';
import { Router } from '../router/router.ts';
import { History } from './history.ts';

const HOUR_MS = 3_600_000;
const INTERVAL_MS = 5000;

function setUp(written: Readonly<Record<string, unknown>>) {
  const clock = new VirtualClock(50 * HOUR_MS);
  const hasher = createHasher([1, 2], 'latin1');
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  let limits = readLimits(written, 'limits');
  const configOf = () => ({
    allow: NO_PATTERNS,
    deny: NO_PATTERNS,
    unmatched: 'allow' as const,
    limits,
  });
  registry.apply(limits);
  const denials = new DenialRecorder(clock);
  const router = new Router(configOf(), registry, hasher, () => 0, denials);
  const learntKeys = (limiter: object) => {
    const { name, inspect } = limiter as SyncLimiter;
    return name === 'upstream' || name === 'warmup'
      ? [{ key: 'b', ...inspect.call(limiter, 'b') }]
      : [];
  };
  const history = new History({ clock, router, hasher, denials, limits: () => limits, learntKeys });
  const sample = (): void => {
    clock.advance(INTERVAL_MS);
    runAtOnce(history.sample());
  };
  const read = (since = 0) => JSON.parse(runAtOnce(history.json(since)));
  const check = (key: string, times = 1): void => {
    for (let n = 0; n < times; n++) router.check({ key, cost: 1 });
  };
  const reload = (next: Readonly<Record<string, unknown>>): void => {
    limits = readLimits(next, 'limits');
    registry.apply(limits);
    router.applyConfig(configOf());
  };
  return { clock, registry, router, history, sample, read, check, reload };
}

const BUCKET = { bucket: { rate: '1/s', burst: 10 } };

describe('history', () => {
  test('a limit: calls a second since the sample before, and the use of its fullest key', () => {
    const { sample, read, check } = setUp({ api: BUCKET });
    check('alice', 15);
    sample();
    check('alice', 3);
    sample();
    const { times, total, limits } = read();
    expect(times).toEqual([50 * HOUR_MS + INTERVAL_MS, 50 * HOUR_MS + 2 * INTERVAL_MS]);
    expect(limits[0]).toMatchObject({ name: 'api', per: 'key', backends: [], keys: 1, waiting: 0 });
    expect(limits[0].series).toEqual({
      allowed: [2, 0.6],
      waited: [0, 0],
      denied: [1, 0],
      use: [0.5, 0.3],
    });
    expect(total).toEqual({ allowed: [2, 0.6], waited: [0, 0], denied: [1, 0] });
  });

  test('since: only later samples', () => {
    const { sample, read } = setUp({ api: BUCKET });
    for (let n = 0; n < 3; n++) sample();
    const { times } = read();
    expect(read(times[1]).times).toEqual([times[2]]);
    expect(read(times[2])).toMatchObject({ times: [], total: {}, limits: [{ series: {} }] });
  });

  test('a limit in shadow mode has its own series, and is no part of the total', () => {
    const { sample, read, check } = setUp({ api: { ...BUCKET, shadow: true } });
    check('alice', 15);
    sample();
    const { total, limits } = read();
    expect(limits[0]).toMatchObject({ shadow: true, series: { allowed: [2], denied: [1] } });
    expect(total.allowed).toEqual([0]);
  });

  test('overrides count for their limit', () => {
    const overrides = [{ match: 'vip', bucket: { rate: '100/s', burst: 100 } }];
    const { sample, read, check } = setUp({ api: { ...BUCKET, overrides } });
    check('vip', 50);
    check('alice', 10);
    sample();
    expect(read().limits).toHaveLength(1);
    expect(read().limits[0].series.allowed).toEqual([12]);
  });

  test('adaptive: the learnt limit, calls in flight and the mean round-trip time', async () => {
    const { sample, read, router } = setUp({ upstream: { adaptive: {} } });
    for (const rttMs of [20, 40]) {
      const held = await router.check({ key: 'b', cost: 1, wantsPermit: true });
      router.permits.settle(held?.permit ?? '', { outcome: 'ok', rttMs });
    }
    await router.check({ key: 'b', cost: 1, wantsPermit: true });
    sample();
    const [{ series, learntKey, held }] = read().limits;
    expect({ learntKey, held, rttMs: series.rttMs, inFlight: series.inFlight }).toEqual({
      learntKey: 'b',
      held: 1,
      rttMs: [30],
      inFlight: [1],
    });
    expect(series.limit[0]).toBeGreaterThanOrEqual(1);
  });

  test('ramp: the tokens of a second grow', () => {
    const ramp = { min: 10, max: 110, over: '1m', mode: 'scheduled' };
    const { sample, read, check } = setUp({ warmup: { ramp } });
    for (let n = 0; n < 5; n++) {
      check('b');
      sample();
    }
    const { tokens } = read().limits[0].series;
    expect(tokens.at(-1)).toBeGreaterThan(tokens[0] + 20);
  });

  test('nearest keys: busy ones by name, the fullest first, and a shared count once', () => {
    const shared = { match: 'job:*', per: 'limit', window: { limit: 100, per: '1m' } };
    const { sample, check, history } = setUp({ api: BUCKET, jobs: shared });
    for (let n = 0; n < 40; n++) {
      check('alice', 4);
      check('bob', 1);
      check(`job:${n}`);
    }
    sample();
    expect(history.nearest.slice(0, 3)).toMatchObject([
      { key: 'alice', limit: 'api', quota: 10, use: 0.5 },
      { key: 'bob', limit: 'api', quota: 10, use: 0.5 },
      { key: '(all keys)', limit: 'jobs', quota: 100, use: 0.4 },
    ]);
    expect(history.nearest.filter(({ limit }) => limit === 'jobs')).toHaveLength(1);
  });

  test('ninety minutes of 110 limits: samples of one hour, of 100 limits, in memory that does not grow', () => {
    const names = Array.from({ length: 110 }, (_, n) => `limit-${n}`);
    const limits = Object.fromEntries(
      names.map((name) => [name, { match: `${name}:*`, ...BUCKET }]),
    );
    const { sample, read, check, history } = setUp(limits);
    sample();
    const bytes = history.bytes;
    for (let n = 0; n < (1.5 * HOUR_MS) / INTERVAL_MS; n++) {
      if (n % 100 === 0) check(`limit-${n % 110}:alice`);
      sample();
    }
    const { times, limits: shown, omittedLimits } = read();
    expect(times).toHaveLength(720);
    expect(times.at(-1) - times[0]).toBe(HOUR_MS - INTERVAL_MS);
    expect([shown.length, omittedLimits]).toEqual([100, 10]);
    expect(shown[0].series.allowed).toHaveLength(720);
    expect(history.bytes).toBe(bytes);
    expect(bytes).toBeLessThan(2.5e6);
  });

  test('a reload: a removed limit is forgotten, others keep their samples, counters begin anew', () => {
    const { sample, read, check, reload, history } = setUp({
      api: BUCKET,
      old: { ...BUCKET, match: 'x' },
    });
    check('alice', 5);
    sample();
    const bytes = history.bytes;
    reload({ api: { window: { limit: 3, per: '1m' } } });
    check('alice', 5);
    sample();
    expect(read().limits.map(({ name }: { name: string }) => name)).toEqual(['api']);
    expect(read().limits[0].series.allowed).toEqual([1, 0.6]);
    expect(history.bytes).toBeLessThan(bytes);
  });

  test('the timer: one sample every 5 s until it is stopped', async () => {
    const { history, clock, read } = setUp({ api: BUCKET });
    history.start();
    for (let n = 0; n < 4; n++) {
      clock.advance(INTERVAL_MS);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(read().times).toHaveLength(4);
    history.stop();
    clock.advance(10 * INTERVAL_MS);
    await new Promise((resolve) => setImmediate(resolve));
    expect(read().times).toHaveLength(4);
  });
});
