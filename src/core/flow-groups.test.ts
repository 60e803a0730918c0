import { expect, test } from 'vitest';
import { type FlowOptions, readFlow } from './flow.ts';
import { FlowGroups } from './flow-groups.ts';

test('flow groups: the longest flow of the longest tenant loses a waiter to a shorter one, and to no longer one', () => {
  const groups = new FlowGroups<{ readonly flow: ReturnType<typeof readFlow> }>();
  const waiters = (count: number, options: FlowOptions) =>
    Array.from({ length: count }, () => {
      const one = { flow: readFlow(options) };
      groups.add(one);
      return one;
    });
  const long = waiters(9, { tenant: 'hog', flow: 'long' });
  const short = waiters(3, { tenant: 'hog', flow: 'short' });
  waiters(5, { flow: 'alice' });
  const displacedBy = (options: FlowOptions) => [...(groups.displacedBy(readFlow(options)) ?? [])];
  expect(displacedBy({ flow: 'alice' })).toEqual(long);
  expect(displacedBy({ flow: 'new' })).toEqual(long);
  expect(displacedBy({ tenant: 'hog', flow: 'short' })).toEqual(long);
  expect(displacedBy({ tenant: 'hog', flow: 'long' })).toEqual([]);
  for (const one of [...long, ...short.slice(1)]) groups.delete(one);
  expect(displacedBy({ flow: 'alice' })).toEqual([]);
  expect(displacedBy({ flow: 'new' })).toHaveLength(5);
});
