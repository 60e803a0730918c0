import { describe, expect, test } from 'vitest';
import { mostCalledKeys } from './most-called-keys.ts';

describe('most called keys', () => {
  test('a key at several limits: listed once, with its highest count and all limits', () => {
    const mostCalled = mostCalledKeys([
      {
        limit: 'all',
        calls: 90,
        keys: [
          { key: 'a', calls: 50, error: 4 },
          { key: 'b', calls: 40 },
        ],
      },
      {
        limit: 'api',
        shadow: true,
        calls: 70,
        keys: [
          { key: 'a', calls: 60 },
          { key: 'c', calls: 10 },
        ],
      },
      { reason: 'deny-list', calls: 45, keys: [{ key: 'm', calls: 45 }] },
    ]);
    expect(mostCalled).toEqual([
      { key: 'a', calls: 60, sources: [{ limit: 'all' }, { limit: 'api', shadow: true }] },
      { key: 'm', calls: 45, sources: [{ reason: 'deny-list' }] },
    ]);
    expect(mostCalledKeys([])).toEqual([]);
  });
});
