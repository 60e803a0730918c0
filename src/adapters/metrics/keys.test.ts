import { describe, expect, test } from 'vitest';
import { SeenKeys } from './keys.ts';

describe('keys that are shown', () => {
  test('who came first is shown, the rest is not', () => {
    const keys = new SeenKeys(2);
    for (const key of ['a', 'b', 'c', 'a', 'd']) keys.saw(key, 0);
    expect(keys.names()).toEqual(['a', 'b']);
  });

  test('who has been silent for five minutes makes room, but only for somebody', () => {
    const keys = new SeenKeys(2);
    keys.saw('quiet', 0);
    keys.saw('lively', 0);
    keys.saw('lively', 299_999);
    keys.saw('stranger', 299_999);
    expect(keys.names()).toEqual(['quiet', 'lively']);
    keys.saw('lively', 300_000);
    expect(keys.names()).toEqual(['quiet', 'lively']);
    keys.saw('stranger', 300_000);
    expect(keys.names()).toEqual(['lively', 'stranger']);
  });

  test('a second stranger finds a place when the next one falls silent', () => {
    const keys = new SeenKeys(1);
    keys.saw('a', 0);
    keys.saw('b', 300_000);
    keys.saw('c', 599_999);
    expect(keys.names()).toEqual(['b']);
    keys.saw('c', 600_000);
    expect(keys.names()).toEqual(['c']);
  });

  test('a document is no name, and neither is half a character', () => {
    const keys = new SeenKeys(9);
    keys.saw('x'.repeat(201), 0);
    keys.saw('\ud83d', 0);
    keys.saw('x'.repeat(200), 0);
    keys.saw('🚦', 0);
    expect(keys.names()).toEqual(['x'.repeat(200), '🚦']);
  });
});
