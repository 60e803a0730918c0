import { describe, expect, test } from 'vitest';
import { ReportedKeys } from './reported-keys.ts';

describe('ReportedKeys', () => {
  test('reports the first keys and no more than the maximum', () => {
    const keys = new ReportedKeys(2);
    for (const key of ['a', 'b', 'c', 'a', 'd']) keys.record(key, 0);
    expect(keys.list()).toEqual(['a', 'b']);
  });

  test('evicts a key that is idle for five minutes, only when a new key needs the slot', () => {
    const keys = new ReportedKeys(2);
    keys.record('idle', 0);
    keys.record('active', 0);
    keys.record('active', 299_999);
    keys.record('new', 299_999);
    expect(keys.list()).toEqual(['idle', 'active']);
    keys.record('active', 300_000);
    expect(keys.list()).toEqual(['idle', 'active']);
    keys.record('new', 300_000);
    expect(keys.list()).toEqual(['active', 'new']);
  });

  test('evicts again as soon as the next key is idle', () => {
    const keys = new ReportedKeys(1);
    keys.record('a', 0);
    keys.record('b', 300_000);
    keys.record('c', 599_999);
    expect(keys.list()).toEqual(['b']);
    keys.record('c', 600_000);
    expect(keys.list()).toEqual(['c']);
  });

  test('never reports keys above 200 characters or with a lone surrogate', () => {
    const keys = new ReportedKeys(9);
    keys.record('x'.repeat(201), 0);
    keys.record('\ud83d', 0);
    keys.record('x'.repeat(200), 0);
    keys.record('🚦', 0);
    expect(keys.list()).toEqual(['x'.repeat(200), '🚦']);
  });
});
