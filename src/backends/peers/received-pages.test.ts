import { describe, expect, test } from 'vitest';
import { seededRandom } from '../../core/random.ts';
import { ReceivedPages } from './received-pages.ts';

const END = 0;

/** Adds pages as pairs of cursor and next cursor, if they are accepted; returns which were. */
const addAll = (pages: ReceivedPages, list: readonly (readonly [number, number])[]): boolean[] =>
  list.map(([cursor, next]) => {
    const isAccepted = pages.accepts(cursor, next);
    if (isAccepted) pages.add(cursor, next);
    return isAccepted;
  });

describe('received pages', () => {
  test('a page beyond a gap is accepted once, and the request begins at the gap', () => {
    const pages = new ReceivedPages();
    const list = [
      [0, 80],
      [160, 240],
      [240, 320],
      [160, 240],
    ] as const;
    expect(addAll(pages, list)).toEqual([true, true, true, false]);
    expect(pages.cursor).toBe(80);
    addAll(pages, [[80, 160]]);
    expect(pages.cursor).toBe(320);
  });

  test('the last page is accepted when none before it is missing', () => {
    const pages = new ReceivedPages();
    expect(
      addAll(pages, [
        [80, END],
        [0, 80],
        [80, END],
      ]),
    ).toEqual([false, true, true]);
    expect(pages.isComplete).toBe(true);
  });

  test('a page that overlaps others is accepted if it has keys that they lack', () => {
    const pages = new ReceivedPages();
    addAll(pages, [
      [0, 80],
      [160, 240],
    ]);
    expect(
      addAll(pages, [
        [60, 150],
        [150, 200],
        [170, 230],
      ]),
    ).toEqual([true, true, false]);
    expect(pages.cursor).toBe(240);
  });

  test('the number of ranges beyond a gap is bounded', () => {
    const pages = new ReceivedPages();
    const apart = Array.from({ length: 100 }, (_, n) => [10 + 20 * n, 20 + 20 * n] as const);
    expect(addAll(pages, apart).filter((isAccepted) => isAccepted).length).toBe(64);
  });

  test('any order of arrival, with pages lost and repeated, ends with every key', () => {
    for (let seed = 1; seed <= 100; seed++) {
      const random = seededRandom(seed);
      const pages = new ReceivedPages();
      const merged = new Set<number>();
      for (let round = 0; round < 1000 && !pages.isComplete; round++) {
        const size = 5 + Math.floor(random() * 5); // the list of a page has another length
        const sent = Array.from({ length: 16 }, (_, n) => pages.cursor + n * size)
          .filter((cursor) => cursor < 1000 && random() > 0.3)
          .map((cursor) => ({ cursor, next: cursor + size, at: random() }))
          .sort((a, b) => a.at - b.at);
        for (const { cursor, next } of sent) {
          const [isAccepted] = addAll(pages, [[cursor, next >= 1000 ? END : next]]);
          for (let key = cursor; isAccepted && key < next; key++) merged.add(key);
        }
      }
      expect(pages.isComplete).toBe(true);
      for (let key = 0; key < 1000; key++) if (!merged.has(key)) expect(`${seed}: ${key}`).toBe('');
    }
  });
});
