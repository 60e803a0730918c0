import { expect, test } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { DeadlineSet } from './deadline-set.ts';

test('deadline set: at most `maxAtOnce` items expire in one turn, the oldest first', () => {
  const clock = new VirtualClock();
  const expired: number[] = [];
  const set = new DeadlineSet<{ issuedAt: number; n: number }>(
    clock,
    1000,
    ({ n }) => expired.push(n),
    4,
  );
  for (let n = 0; n < 10; n++) set.add({ issuedAt: clock.now(), n });
  const late = { issuedAt: clock.now() + 500, n: 10 };
  set.add(late);
  clock.advance(999);
  expect(expired).toEqual([]);
  clock.advance(1);
  expect(expired).toEqual([0, 1, 2, 3]);
  clock.advance(10);
  expect(expired).toHaveLength(10);
  clock.advance(489);
  expect(set.size).toBe(1);
  clock.advance(1);
  expect([expired.at(-1), set.size]).toEqual([10, 0]);
});

test('deadline set: the timeout of an item that is held begins anew, until it is removed', () => {
  const clock = new VirtualClock();
  const expired: number[] = [];
  const holder = {};
  const set = new DeadlineSet<{ issuedAt: number; n: number }>(
    clock,
    1000,
    ({ n }) => expired.push(n),
    4,
    ({ n }) => (n === 1 ? new WeakRef(holder) : undefined),
  );
  const items = [0, 1, 2].map((n) => ({ issuedAt: clock.now(), n }));
  for (const item of items) set.add(item);
  clock.advance(700);
  set.add({ issuedAt: clock.now(), n: 3 });
  clock.advance(300);
  expect([expired, set.size]).toEqual([[0, 2], 2]);
  clock.advance(700);
  expect([expired, set.size]).toEqual([[0, 2, 3], 1]);
  clock.advance(5000);
  expect(set.size).toBe(1);
  set.remove(items[1]);
  clock.advance(5000);
  expect([expired, set.size]).toEqual([[0, 2, 3], 0]);
});
