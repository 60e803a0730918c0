/**
 * Two processes change a limit from the same old rule to different ones: a key that both convert is as the last one
 * would have converted it alone.
 */

import { expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import { converterBetween, type Policy, type State } from './policy.ts';

const NOW = 1_790_000_000_250;

const KINDS: Record<string, readonly [old: Limit, first: Limit, last: Limit]> = {
  bucket: [
    { bucket: { rate: 1, burst: 10 } },
    { bucket: { rate: 5, burst: 30 } },
    { bucket: { rate: 2, burst: 20 } },
  ],
  spacing: [
    { spacing: { every: '1h' } },
    { spacing: { every: '3h' } },
    { spacing: { every: '5h' } },
  ],
  window: [
    { window: { limit: 10, per: '1h' } },
    { window: { limit: 30, per: '1h' } },
    { window: { limit: 20, per: '1h' } },
  ],
  quota: [
    { quota: { limit: 10, per: 'day' } },
    { quota: { limit: 30, per: 'month' } },
    { quota: { limit: 20, per: 'hour' } },
  ],
  ramp: [
    { ramp: { min: 10, max: 50, over: '1m' } },
    { ramp: { min: 5, max: 90, over: '1m' } },
    { ramp: { min: 8, max: 70, over: '1m' } },
  ],
  lockout: [{ lockout: { after: 10 } }, { lockout: { after: 30 } }, { lockout: { after: 20 } }],
  concurrency: [{ concurrency: 10 }, { concurrency: 30 }, { concurrency: 20 }],
};

const policyOf = (limit: Limit): Policy => createPolicy(limit, seededRandom(1));

function converted(from: Policy, to: Policy, source: State): State {
  const state = new Float64Array(to.width);
  converterBetween(from, to)?.(state, 0, source, 0, NOW + 100);
  return state;
}

test.each(Object.entries(KINDS))(
  '%s: a key that two different changes from one rule convert is as if converted by the last',
  (_kind, limits) => {
    const [old, first, last] = limits.map(policyOf);
    const state = new Float64Array(old.width);
    old.init(state, 0, NOW);
    for (let call = 0; call < 4; call++) old.check(state, 0, 1, NOW);
    const alone = converted(old, last, state);
    const both = converted(old, last, converted(old, first, state));
    expect([...both]).toEqual([...alone]);
    expect(last.keyState(both, 0, NOW + 100)).toEqual(last.keyState(alone, 0, NOW + 100));
    expect(last.check(both, 0, 1, NOW + 100)).toEqual(last.check(alone, 0, 1, NOW + 100));
  },
);
