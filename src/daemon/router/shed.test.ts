import { describe, expect, test } from 'vitest';
import { createRouter } from '../../../test/support/http-protocol.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { checkAll } from './joint-check.ts';
import type { CheckResult, RoutedRequest, TakeResult } from './request.ts';

const rule = { bucket: { rate: '1/h', burst: 5 } };

/** A router whose checks are all too old. */
function setUp(config: Parameters<typeof createRouter>[0], isOpen = true) {
  const router = createRouter(config, new VirtualClock(0));
  const counted: boolean[] = [];
  const countShed = (isDenied: boolean): void => void counted.push(isDenied);
  router.overload = { isShedding: true, isOpen, countShed, shedCount: 0, deniedCount: 0 };
  const route = (key: string, cost = 1) => router.route({ key, cost }) as RoutedRequest;
  const check = (key: string) => router.checkRouted(route(key)) as CheckResult;
  const isAllowed = (key: string) => router.isAllowed(Buffer.from(key), 0, key.length);
  const verdicts = (...keys: string[]) => keys.map((key) => check(key).decision.verdict);
  return {
    router,
    route,
    check,
    isAllowed,
    verdicts,
    shed: () => counted.length,
    denied: () => counted.filter(Boolean).length,
  };
}

const LIMITS = {
  api: { ...rule, match: 'api:*' },
  login: { ...rule, match: 'login:*', overload: 'closed' },
  page: { ...rule, match: 'page:*', overload: 'open' },
};

describe('shed checks', () => {
  test('a limit without its own fail mode: overload.fail decides', () => {
    const keys = ['api:1', 'login:1', 'page:1', 'other'];
    expect(setUp({ limits: LIMITS }).verdicts(...keys)).toEqual([
      'allow',
      'deny',
      'allow',
      'allow',
    ]);
    const closed = setUp({ limits: LIMITS }, false);
    expect(closed.verdicts(...keys)).toEqual(['deny', 'deny', 'allow', 'allow']);
    expect(closed.denied()).toBe(2);
    expect(closed.shed()).toBe(3); // no limit matches the last key: that is a decision
  });

  test('several limits on a key: one that fails closed denies, unless it is in shadow mode', () => {
    const all = { ...rule, always: true, overload: 'closed' };
    const { check } = setUp({ limits: { page: LIMITS.page, all } });
    expect(check('page:1')).toMatchObject({ limit: 'all', reason: 'overload' });
    const shadow = setUp({ limits: { page: LIMITS.page, all: { ...all, shadow: true } } });
    expect(shadow.check('page:1').decision.verdict).toBe('allow');
  });

  test('lists decide as ever, and such a check is not counted as shed', () => {
    const { isAllowed, verdicts, shed, router } = setUp({
      deny: ['bad'],
      limits: { any: { ...rule, deny: ['worse'], allow: ['good'], overload: 'closed' } },
    });
    const keys = ['bad', 'worse', 'good'];
    expect(verdicts(...keys)).toEqual(['deny', 'deny', 'allow']);
    expect(keys.map(isAllowed)).toEqual([false, false, true]);
    expect([shed(), router.staticDenials['deny-list']]).toEqual([0, 4]);
  });

  test('an unmatched key is denied with unmatched: deny', () => {
    const { isAllowed } = setUp({ unmatched: 'deny', limits: LIMITS });
    expect(['other', 'api:1', 'login:1'].map(isAllowed)).toEqual([false, true, false]);
  });

  test('nothing is counted', () => {
    const { router, route, verdicts, isAllowed } = setUp({ limits: LIMITS });
    for (let n = 0; n < 20; n++)
      expect([...verdicts('api:1'), isAllowed('api:1')]).toEqual(['allow', true]);
    expect(router.remaining(route('api:1'))).toBe(5);
  });

  test('a batch is granted whole or not at all', () => {
    const { router, route } = setUp({ limits: LIMITS });
    const taken = (key: string) => (router.takeUpTo(route(key, 9), 9) as TakeResult).taken;
    expect([taken('api:1'), taken('login:1')]).toEqual([9, 0]);
  });

  test('several checks as one: counts one, and one that fails closed denies', () => {
    const { router, route, shed } = setUp({ deny: ['bad'], limits: LIMITS });
    const ask = (...keys: string[]) => {
      const parts = keys.map((key) => ({ limit: undefined, key, request: route(key) }));
      return checkAll(router, parts, false) as CheckResult;
    };
    expect(ask('api:1', 'page:1')).toMatchObject({
      decision: { verdict: 'allow' },
      reason: 'overload',
    });
    expect(ask('api:1', 'login:1')).toMatchObject({ limit: 'login', reason: 'overload' });
    expect(shed()).toBe(2);
    expect(ask('api:1', 'bad').staticVerdict?.reason).toBe('deny-list');
    expect(shed()).toBe(2);
  });

  test('a denial is recorded with the reason overload', () => {
    const { router, isAllowed } = setUp({ limits: LIMITS });
    expect(isAllowed('login:1')).toBe(false);
    expect(router.denials.recent({ max: 9 })).toMatchObject([
      { key: 'login:1', limit: 'login', reason: 'overload', denied: 1 },
    ]);
  });
});
