import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { CallRecorder } from '../calls/call-recorder.ts';
import { parseConfigText } from '../config/file.ts';
import { checkAll, type JointPart } from './joint-check.ts';
import { LimiterRegistry } from './limiter-registry.ts';
import type { CheckRequest, RoutedRequest } from './request.ts';
import { Router } from './router.ts';

const CONFIG = `
deny: [mallory]
limits:
  api: { match: 'ip:*', bucket: { rate: 1/s, burst: 3 }, overrides: [{ match: 'ip:9', bucket: { rate: 1/s, burst: 9 } }] }
  trial: { match: 'ip:*', always: true, shadow: true, bucket: { rate: 1/s, burst: 1 } }
  login: { match: 'user:*', bucket: { rate: 1/s, burst: 2 } }
  slots: { match: 'job:*', concurrency: 2 }
`;

function setUp() {
  const loaded = parseConfigText('test.yaml', CONFIG);
  if (!('config' in loaded)) throw new Error(loaded.problems.join('\n'));
  const clock = new VirtualClock(1_000_000);
  const hasher = createHasher([1, 2], 'latin1');
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  registry.apply(loaded.config.limits);
  const calls = new CallRecorder(clock, seededRandom(1));
  const router = new Router(
    loaded.config,
    registry,
    hasher,
    seededRandom(2),
    undefined,
    undefined,
    calls,
  );
  const line = (key: string): void => {
    const bytes = Buffer.from(`<${key}>`);
    void router.isAllowed(bytes, 1, bytes.length - 1);
  };
  const routed = (request: Partial<CheckRequest> & { key: string }): RoutedRequest =>
    router.route({ cost: 1, ...request }) as RoutedRequest;
  /** Calls by source and key. */
  const counted = (): Record<string, number> =>
    Object.fromEntries(
      calls.top('now', 99, 99).flatMap(({ limit, reason, command, shadow, keys }) => {
        const by = [reason, command, limit, shadow && '(shadow)'].filter(Boolean).join(' ');
        return keys.map(({ key, calls: n }) => [`${by}: ${key}`, n]);
      }),
    );
  return { router, line, routed, counted, clock };
}

describe('router: calls by key', () => {
  test('line protocol: allowed and denied calls count, cached route or not', () => {
    const { line, counted } = setUp();
    for (let n = 0; n < 7; n++) line('user:a');
    line('user:b');
    expect(counted()).toEqual({ 'login: user:a': 7, 'login: user:b': 1 });
  });

  test('check, check with status, a wait and a batch: one call each', async () => {
    const { router, routed, counted } = setUp();
    void router.checkRouted(routed({ key: 'user:a' }));
    void router.checkRouted(routed({ key: 'job:a', wantsPermit: true }));
    void router.checkWithStatus(routed({ key: 'user:b' }));
    const sent = { key: 'user:c' };
    await router.acquire(routed(sent), sent, { waitMs: 0, signal: undefined });
    await router.acquire(routed({ key: 'mallory' }), sent, { waitMs: 0, signal: undefined });
    void router.takeUpTo(routed({ key: 'user:d', cost: 5 }), 5);
    expect(counted()).toEqual({
      'slots: job:a': 1,
      'login: user:a': 1,
      'login: user:b': 1,
      'login: user:c': 1,
      'login: user:d': 1,
      'deny-list: mallory': 1,
    });
  });

  test('several checks as one question: each key counts', () => {
    const { router, routed, counted } = setUp();
    const part = (limit: string, key: string): JointPart => ({
      limit,
      key,
      request: routed({ limit, key }),
    });
    void checkAll(router, [part('login', 'user:a'), part('slots', 'job:b')], false);
    expect(counted()).toEqual({ 'login: user:a': 1, 'slots: job:b': 1 });
  });

  test('every limit of a call counts it; an override counts for its limit', () => {
    const { line, counted } = setUp();
    for (let n = 0; n < 4; n++) line('ip:1');
    line('ip:9');
    expect(counted()).toEqual({
      'api: ip:1': 4,
      'api: ip:9': 1,
      'trial (shadow): ip:1': 4,
      'trial (shadow): ip:9': 1,
    });
  });

  test('lists: the reason stands for the limit', () => {
    const { line, counted } = setUp();
    line('mallory');
    line('mallory');
    line('nothing-matches');
    expect(counted()).toEqual({ 'deny-list: mallory': 2, 'unmatched: nothing-matches': 1 });
  });

  test('IPv6: addresses of one network are one key', () => {
    const { line, counted } = setUp();
    line('user:2001:db8::1');
    line('user:2001:db8::2');
    expect(Object.values(counted())).toEqual([2]);
  });

  test('a cost of 0 and checks that are shed: no call', () => {
    const { router, routed, line, counted } = setUp();
    void router.checkRouted(routed({ key: 'user:a', cost: 0 }));
    router.overload = { ...router.overload, isShedding: true, isOpen: true };
    line('user:a');
    void router.checkRouted(routed({ key: 'user:a' }));
    void router.checkWithStatus(routed({ key: 'user:a' }));
    expect(counted()).toEqual({});
  });
});
