import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createWaitQueue } from './fair-wait-queue.ts';
import { QUEUE_ORDERS, type QueuePosition } from './wait-queue.ts';

type Position = QueuePosition & { readonly cost: number };

describe('wait queue', () => {
  test.each(QUEUE_ORDERS)(
    '%s: the first waiter is right after any sequence of add and remove',
    (order) => {
      const before: Record<string, (a: QueuePosition, b: QueuePosition) => number> = {
        fifo: (a, b) => a.arrival - b.arrival,
        lifo: (a, b) => b.arrival - a.arrival,
        fair: (a, b) => a.arrival - b.arrival, // within one flow
        priority: (a, b) => b.priority - a.priority || a.arrival - b.arrival,
      };
      const step = fc.record({
        leaves: fc.boolean(),
        priority: fc.nat(3),
        late: fc.nat(5), // a waiter from another queue has an older arrival
        pick: fc.nat(1000),
      });
      fc.assert(
        fc.property(fc.array(step, { minLength: 1, maxLength: 200 }), (steps) => {
          const queue = createWaitQueue<Position>(order);
          const model: Position[] = [];
          let arrival = 0;
          for (const { leaves, priority, late, pick } of steps) {
            if (leaves && model.length > 0) {
              const [one] = model.splice(pick % model.length, 1);
              queue.remove(one);
            } else {
              arrival += 10;
              const one = { arrival: arrival - 7 * late - pick / 1e6, priority, cost: 1 };
              model.push(one);
              queue.add(one);
            }
            const [next] = model.toSorted(before[order]);
            expect(queue.first).toBe(next);
            expect(queue.size).toBe(model.length);
            expect(queue.front(3)).toEqual(model.toSorted(before[order]).slice(0, 3));
            expect(queue.hasEarlier({ arrival: Infinity, priority: -1 })).toBe(
              order !== 'lifo' && model.length > 0,
            );
          }
        }),
      );
    },
  );

  test.each(QUEUE_ORDERS)('%s: addFirst makes a removed waiter the next one, once', (order) => {
    const queue = createWaitQueue<Position>(order);
    const waiters = [1, 2, 3].map((arrival) => ({ arrival, priority: 0, cost: 1 }));
    for (const waiter of waiters) queue.add(waiter);
    queue.remove(waiters[1]);
    queue.addFirst(waiters[1]);
    expect([queue.size, queue.first]).toEqual([3, waiters[1]]);
    expect(queue.front(9).filter((waiter) => waiter === waiters[1])).toHaveLength(1);
  });
});
