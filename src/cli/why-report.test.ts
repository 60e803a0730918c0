import { describe, expect, test } from 'vitest';
import { UNLIMITED } from '../core/decision.ts';
import { formatTime } from './chart/format.ts';
import { type KeyPages, whyLines } from './why-report.ts';

const APPLIED = { name: 'a', isApplied: true, rule: {}, reason: 'matches *' };

function why(state: object, denials: readonly object[] = []): string {
  const pages = {
    explained: { summary: 'one limit decides', limits: [APPLIED] },
    inspected: { limits: [{ name: 'a', opensInMs: 0, ...state }] },
    denied: { lastHours: [], denials },
  } as unknown as KeyPages;
  return whyLines('alice', '1h', pages).join('\n');
}

const denial = (about: object): object => ({
  ...{ firstAt: 0, lastAt: 0, denied: 1, cost: 1, retryAfterMs: 500 },
  ...about,
});

describe('why: what an operator reads', () => {
  test('a long time has human units', () => {
    expect(why({ remaining: 0, opensInMs: 3_598_560 })).toContain('a call fits in 59 min 59 s');
    const times = [0.5, 59_999, 60_000, 3_599_900, 5_400_000, 90_000_000, 86_399_999];
    expect(times.map(formatTime)).toEqual([
      ...['0.5 ms', '60 s', '1 min', '1 h', '1 h 30 min', '1 d 1 h', '1 d'],
    ]);
  });

  test('a busy limit that has not learnt a rate is not a number', () => {
    expect(why({ remaining: UNLIMITED, limit: UNLIMITED })).toContain('not limited');
    expect(why({ remaining: 4, limit: 5 })).toContain('4 left');
  });

  test.each(['further-limits', 'queue-full'])('a denial with reason %s has advice', (reason) => {
    const [, advice] = why({ remaining: 4 }, [denial({ reason })]).split('what to do:\n');
    expect(advice.trim()).not.toBe(reason);
    expect(advice.length).toBeGreaterThan(40);
  });

  test('a denial by an outage names the backend, not the client', () => {
    const text = why({ isAvailable: false, opensInMs: undefined }, [
      denial({ limit: 'a', reason: 'unavailable' }),
    ]);
    const [state, advice] = text.split('what to do:\n');
    expect(state).toContain('`onUnavailable` decides now: the backend of a is unavailable');
    expect(state).not.toContain('denied now');
    expect(advice).toContain('a: the backend of the limit did not reply');
    expect(advice).not.toContain('settle calls');
  });
});
