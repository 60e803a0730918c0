import { expect, test } from 'vitest';
import { InFlightLimit } from './in-flight-limit.ts';

test('in-flight limit: bounds work in flight, in order of arrival, also after a failure', async () => {
  const limit = new InFlightLimit();
  const started: number[] = [];
  const ends: (() => void)[] = [];
  let [inFlight, peak] = [0, 0];
  const work = (n: number) => (): Promise<number> =>
    new Promise((resolve, reject) => {
      started.push(n);
      peak = Math.max(peak, ++inFlight);
      ends.push(() => {
        inFlight--;
        if (n === 5) reject(new Error('failed'));
        else resolve(n);
      });
    });
  const numbers = Array.from({ length: 80 }, (_, n) => n);
  const running: Promise<number>[] = [];
  const add = (some: number[]): unknown => running.push(...some.map((n) => limit.run(work(n))));
  add(numbers.slice(0, 40));
  for (const n of numbers) {
    await expect.poll(() => ends.length).toBeGreaterThan(n);
    ends[n]();
    if (n === 20) add(numbers.slice(40)); // while queued work is in flight
  }
  const failures = (await Promise.allSettled(running)).filter(
    ({ status }) => status === 'rejected',
  );
  expect([peak, failures.length]).toEqual([32, 1]);
  expect(started).toEqual(numbers);
});
