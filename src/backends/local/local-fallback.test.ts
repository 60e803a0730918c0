import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { LocalFallback } from './local-fallback.ts';

/** 3 at once, and a lock of 5 hours after 3 refusals. */
const setUp = (processes = 1) => {
  const limit = {
    all: [
      { bucket: { rate: '1/h', burst: 3 } },
      { lockout: { on: 'refusal', after: 3, within: '1h', lock: '5h' } },
    ],
  } as const;
  const clock = new VirtualClock(1_700_000_000_000);
  const random = () => 0.5;
  const options = { clock, random, hasher: createHasher([1, 2], 'utf8'), maxKeys: 100 };
  return new LocalFallback(createPolicy(limit, random), options, processes, async () => {});
};

describe.each([1, 2])('local fallback of %i processes: lockout on refusals', (processes) => {
  const isLocked = (fallback: LocalFallback): boolean => {
    const decision = fallback.check('k', 1);
    return decision.verdict === 'deny' && decision.reason === 'locked';
  };

  test('a call that waits: is refused and checked again, and no refusal is counted', () => {
    const fallback = setUp(processes);
    while (fallback.check('k', 1).verdict === 'allow');
    for (let poll = 0; poll < 10; poll++)
      expect(fallback.check('k', 1, true)).toMatchObject({ verdict: 'deny', rule: 'bucket' });
    expect(isLocked(fallback)).toBe(false); // the second refusal
    expect(isLocked(fallback)).toBe(true);
  });

  test('a call that waits at the server: its refusals there are not counted either', () => {
    const fallback = setUp(processes);
    while (fallback.check('k', 1).verdict === 'allow');
    const refused = { verdict: 'deny', retryAfterMs: 1000 } as const;
    for (let poll = 0; poll < 10; poll++) fallback.observe('k', 1, refused, true);
    expect(isLocked(fallback)).toBe(false);
    fallback.observe('k', 1, refused);
    expect(isLocked(fallback)).toBe(true);
  });

  test('a call that waits and fits: is charged', () => {
    const fallback = setUp(processes);
    let granted = 0;
    while (fallback.check('k', 1, true).verdict === 'allow') granted++;
    expect(granted).toBe(Math.floor(3 / processes));
  });
});
