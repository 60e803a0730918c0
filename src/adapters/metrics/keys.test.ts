import { describe, expect, test } from 'vitest';
import { ReportedKeys } from './keys.ts';

describe('keys that are shown', () => {
  test('who came first is shown, the rest is not', () => {
    const keys = new ReportedKeys(2);
    for (const key of ['a', 'b', 'c', 'a', 'd']) keys.record(key, 0);
    expect(keys.list()).toEqual(['a', 'b']);
  });

  test('who has been silent for five minutes makes room, but only for somebody', () => {
    const keys = new ReportedKeys(2);
    keys.record('quiet', 0);
    keys.record('lively', 0);
    keys.record('lively', 299_999);
    keys.record('stranger', 299_999);
    expect(keys.list()).toEqual(['quiet', 'lively']);
    keys.record('lively', 300_000);
    expect(keys.list()).toEqual(['quiet', 'lively']);
    keys.record('stranger', 300_000);
    expect(keys.list()).toEqual(['lively', 'stranger']);
  });

  test('a second stranger finds a place when the next one falls silent', () => {
    const keys = new ReportedKeys(1);
    keys.record('a', 0);
    keys.record('b', 300_000);
    keys.record('c', 599_999);
    expect(keys.list()).toEqual(['b']);
    keys.record('c', 600_000);
    expect(keys.list()).toEqual(['c']);
  });

  test('a document is no name, and neither is half a character', () => {
    const keys = new ReportedKeys(9);
    keys.record('x'.repeat(201), 0);
    keys.record('\ud83d', 0);
    keys.record('x'.repeat(200), 0);
    keys.record('🚦', 0);
    expect(keys.list()).toEqual(['x'.repeat(200), '🚦']);
  });
});
