import { describe, expect, test } from 'vitest';
import { PermitQueue } from './permits.ts';

/** Queues waiters that record their name when they run. */
const queue = (permits: PermitQueue, log: string[], ...names: string[]) => {
  for (const name of names) permits.acquire(() => log.push(name));
};

describe('permit queue', () => {
  test('grants permits in FIFO order', () => {
    const permits = new PermitQueue(2);
    const log: string[] = [];
    queue(permits, log, 'a', 'b', 'c', 'd');
    permits.runGranted();
    expect(log).toEqual(['a', 'b']);
    permits.release();
    permits.runGranted();
    expect(log).toEqual(['a', 'b', 'c']);
  });

  test('a higher limit grants a permit to the next waiter', () => {
    const permits = new PermitQueue(1);
    const log: string[] = [];
    queue(permits, log, 'a', 'b', 'c');
    permits.runGranted();
    permits.resize(1, 2);
    permits.runGranted();
    expect(log).toEqual(['a', 'b']);
  });

  test('a lower limit removes free permits at once', () => {
    const permits = new PermitQueue(3);
    const log: string[] = [];
    permits.resize(3, 1);
    queue(permits, log, 'a', 'b');
    permits.runGranted();
    expect(log).toEqual(['a']);
  });

  test('a lower limit below the permits in use becomes debt, paid by released permits', () => {
    const permits = new PermitQueue(3);
    const log: string[] = [];
    queue(permits, log, 'a', 'b', 'c', 'd', 'e');
    permits.runGranted();
    permits.resize(3, 1); // three in use: a debt of two
    permits.release();
    permits.release();
    permits.runGranted();
    expect(log).toEqual(['a', 'b', 'c']);
    permits.release();
    permits.runGranted();
    expect(log).toEqual(['a', 'b', 'c', 'd']);
  });

  test('a waiter that pays debt returns to the end of the queue', () => {
    const permits = new PermitQueue(2);
    const log: string[] = [];
    queue(permits, log, 'a', 'b', 'c', 'd');
    permits.runGranted();
    permits.resize(2, 1);
    permits.release(); // granted to c, which pays the debt
    permits.runGranted();
    permits.release();
    permits.runGranted();
    expect(log).toEqual(['a', 'b', 'd']);
  });

  test('a lower limit in the same instant applies to a permit that is already granted', () => {
    const permits = new PermitQueue(1);
    const log: string[] = [];
    queue(permits, log, 'a');
    permits.resize(1, 0);
    permits.runGranted();
    expect(log).toEqual([]);
  });
});
