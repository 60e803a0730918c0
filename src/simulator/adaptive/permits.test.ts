import { describe, expect, test } from 'vitest';
import { Permits } from './permits.ts';

/** Queues somebody who writes down when it is their turn. */
const queue = (permits: Permits, story: string[], ...names: string[]) => {
  for (const name of names) permits.acquire(() => story.push(name));
};

describe('permits', () => {
  test('go out in the order they were asked for', () => {
    const permits = new Permits(2);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd');
    permits.run();
    expect(story).toEqual(['a', 'b']);
    permits.release();
    permits.run();
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('a raised limit lets the next one in', () => {
    const permits = new Permits(1);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c');
    permits.run();
    permits.resize(1, 2);
    permits.run();
    expect(story).toEqual(['a', 'b']);
  });

  test('a cut takes free permits at once', () => {
    const permits = new Permits(3);
    const story: string[] = [];
    permits.resize(3, 1);
    queue(permits, story, 'a', 'b');
    permits.run();
    expect(story).toEqual(['a']);
  });

  test('what a cut cannot take is paid by the permits that come back', () => {
    const permits = new Permits(3);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd', 'e');
    permits.run();
    permits.resize(3, 1); // three are out: two must be paid for
    permits.release();
    permits.release();
    permits.run();
    expect(story).toEqual(['a', 'b', 'c']);
    permits.release();
    permits.run();
    expect(story).toEqual(['a', 'b', 'c', 'd']);
  });

  test('whoever pays goes to the back of the queue', () => {
    const permits = new Permits(2);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd');
    permits.run();
    permits.resize(2, 1);
    permits.release(); // handed to c, who pays with it
    permits.run();
    permits.release();
    permits.run();
    expect(story).toEqual(['a', 'b', 'd']);
  });

  test('a cut in the same instant still counts for a permit already handed over', () => {
    const permits = new Permits(1);
    const story: string[] = [];
    queue(permits, story, 'a');
    permits.resize(1, 0);
    permits.run();
    expect(story).toEqual([]);
  });
});
