import { expect, test } from 'vitest';
import { Semaphore } from './semaphore.ts';

test('so much is under way at once; the others come in order, also behind one that failed', async () => {
  const turns = new Semaphore();
  const begun: number[] = [];
  const ends: (() => void)[] = [];
  let [underway, most] = [0, 0];
  const work = (n: number) => (): Promise<number> =>
    new Promise((done, failed) => {
      begun.push(n);
      most = Math.max(most, ++underway);
      ends.push(() => {
        underway--;
        if (n === 5) failed(new Error('lost'));
        else done(n);
      });
    });
  const numbers = Array.from({ length: 80 }, (_, n) => n);
  const taken: Promise<number>[] = [];
  const take = (some: number[]): unknown => taken.push(...some.map((n) => turns.run(work(n))));
  take(numbers.slice(0, 40));
  for (const n of numbers) {
    await expect.poll(() => ends.length).toBeGreaterThan(n);
    ends[n]();
    if (n === 20) take(numbers.slice(40)); // while others who came later than the first are under way
  }
  const lost = (await Promise.allSettled(taken)).filter(({ status }) => status === 'rejected');
  expect([most, lost.length]).toEqual([32, 1]);
  expect(begun).toEqual(numbers);
});
