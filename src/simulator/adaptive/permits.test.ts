import { describe, expect, test } from 'vitest';
import { PermitQueue } from './permits.ts';

/** Queues somebody who writes down when it is their turn. */
const queue = (permits: PermitQueue, story: string[], ...names: string[]) => {
  for (const name of names) permits.acquire(() => story.push(name));
};

describe('permits', () => {
  test('go out in the order they were asked for', () => {
    const permits = new PermitQueue(2);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd');
    permits.runGranted();
    expect(story).toEqual(['a', 'b']);
    permits.release();
    permits.runGranted();
    expect(story).toEqual(['a', 'b', 'c']);
  });

  test('a raised limit lets the next one in', () => {
    const permits = new PermitQueue(1);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c');
    permits.runGranted();
    permits.resize(1, 2);
    permits.runGranted();
    expect(story).toEqual(['a', 'b']);
  });

  test('a cut takes free permits at once', () => {
    const permits = new PermitQueue(3);
    const story: string[] = [];
    permits.resize(3, 1);
    queue(permits, story, 'a', 'b');
    permits.runGranted();
    expect(story).toEqual(['a']);
  });

  test('what a cut cannot take is paid by the permits that come back', () => {
    const permits = new PermitQueue(3);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd', 'e');
    permits.runGranted();
    permits.resize(3, 1); // three are out: two must be paid for
    permits.release();
    permits.release();
    permits.runGranted();
    expect(story).toEqual(['a', 'b', 'c']);
    permits.release();
    permits.runGranted();
    expect(story).toEqual(['a', 'b', 'c', 'd']);
  });

  test('whoever pays goes to the back of the queue', () => {
    const permits = new PermitQueue(2);
    const story: string[] = [];
    queue(permits, story, 'a', 'b', 'c', 'd');
    permits.runGranted();
    permits.resize(2, 1);
    permits.release(); // handed to c, who pays with it
    permits.runGranted();
    permits.release();
    permits.runGranted();
    expect(story).toEqual(['a', 'b', 'd']);
  });

  test('a cut in the same instant still counts for a permit already handed over', () => {
    const permits = new PermitQueue(1);
    const story: string[] = [];
    queue(permits, story, 'a');
    permits.resize(1, 0);
    permits.runGranted();
    expect(story).toEqual([]);
  });
});
