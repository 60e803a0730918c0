import { describe, expect, test } from 'vitest';
import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import { aimdNetflix } from './aimd-netflix.ts';
import { envoyGradient } from './envoy.ts';
import { gradient2 } from './gradient2.ts';
import type { LearntLimit } from './rule.ts';
import { findRule, RULE_NAMES } from './rules.ts';
import { vegas } from './vegas.ts';

/** So many calls that end evenly over a second, each with the limit in flight. */
function second(
  rule: LearntLimit,
  at: Millis,
  rttMs: Millis,
  { calls = 100, outcome = 'ok' as Outcome, inFlight = rule.limit } = {},
): void {
  for (let n = 1; n <= calls; n++) {
    const now = at + (1001 * n) / calls;
    rule.add({ now, sentAt: now - rttMs, rttMs, inFlight, outcome, isDropped: outcome !== 'ok' });
  }
}

const random = () => seededRandom(1);

describe('vegas', () => {
  test('grows by 6 without a queue, rests with one of 3 to 6, shrinks by 1 beyond', () => {
    const rule = vegas(random());
    second(rule, 0, 100); // the first call ends an empty window, the rest sets the shortest round trip
    second(rule, 1001, 100);
    second(rule, 2002, 100);
    const grown = rule.limit;
    expect(grown).toBeGreaterThan(20);
    expect((grown - 20) % 6).toBe(0);
    second(rule, 10_000, 100 / (1 - 4 / grown));
    second(rule, 11_001, 100 / (1 - 4 / grown));
    const rested = rule.limit;
    second(rule, 12_002, 200);
    second(rule, 13_003, 200);
    expect(rule.limit).toBeLessThan(rested);
  });

  test('a dropped call shrinks the limit; an unused limit stays', () => {
    const rule = vegas(random());
    second(rule, 0, 100);
    second(rule, 1001, 100, { inFlight: 2 });
    second(rule, 2002, 100, { inFlight: 2 });
    expect(rule.limit).toBe(20);
    second(rule, 3003, 101, { outcome: 'busy', inFlight: 2 });
    second(rule, 4004, 101, { outcome: 'busy', inFlight: 2 });
    expect(rule.limit).toBeLessThan(20);
  });
});

describe('gradient2', () => {
  test('grows while round trips stay the same, shrinks to 20 while they grow beyond 1.5 times', () => {
    const rule = gradient2();
    for (let s = 0; s < 60; s++) second(rule, 1001 * s, 100);
    const grown = rule.limit;
    expect(grown).toBeGreaterThan(50);
    for (let s = 60; s < 120; s++) second(rule, 1001 * s, 1000);
    expect(rule.limit).toBeLessThan(grown / 2);
    expect(rule.limit).toBeGreaterThanOrEqual(20);
  });
});

describe('aimd-netflix', () => {
  test('adds one for every call, and a drop or 5 s take a tenth', () => {
    const rule = aimdNetflix();
    second(rule, 0, 100, { inFlight: 200 });
    expect(rule.limit).toBe(120);
    second(rule, 1000, 100, { calls: 1, outcome: 'busy' });
    expect(rule.limit).toBe(108);
    second(rule, 2000, 5001, { calls: 1 });
    expect(rule.limit).toBe(97);
    second(rule, 3000, 100, { calls: 500, inFlight: 200 });
    expect(rule.limit).toBe(200);
  });
});

describe('envoy', () => {
  test('starts with three calls until 50 have ended, then grows at the same round trip', () => {
    const rule = envoyGradient(random());
    expect(rule.limit).toBe(3);
    second(rule, 1000, 100, { calls: 49 });
    expect(rule.limit).toBe(3);
    second(rule, 2000, 100, { calls: 1 });
    second(rule, 4000, 100);
    expect(rule.limit).toBeGreaterThan(20);
  });

  test('shrinks while calls are slower than 1.25 times minRTT, and measures it anew at the lowest limit', () => {
    const rule = envoyGradient(random());
    second(rule, 1000, 100);
    for (let s = 2; s < 5; s++) second(rule, 1001 * s, 100);
    const grown = rule.limit;
    second(rule, 6000, 500);
    expect(rule.limit).toBeLessThan(grown / 2);
    for (let s = 7; s < 12; s++) second(rule, 1001 * s, 5000);
    expect(rule.limit).toBe(3);
  });
});

describe('findRule', () => {
  test('finds every named rule and fixed:N', () => {
    for (const name of [...RULE_NAMES, 'fixed:1', 'fixed:1000']) {
      const rule = findRule(name)?.(random(), 0);
      expect(rule?.limit(0)).toBeGreaterThanOrEqual(1);
      expect(rule?.start(0, 0)).toBe(0);
    }
  });

  test.each(['', 'fixed', 'fixed:0', 'fixed:1001', 'fixed:2.5', 'toString', 'AIMD'])(
    'has no rule "%s"',
    (name) => expect(findRule(name)).toBeUndefined(),
  );
});
