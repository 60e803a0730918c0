import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { QUEUE_ORDERS, type QueuePosition, WaitQueue } from './wait-queue.ts';

describe('a line', () => {
  test.each(QUEUE_ORDERS)('%s: under any coming and going the next is who should be', (order) => {
    const before: Record<string, (a: QueuePosition, b: QueuePosition) => number> = {
      fifo: (a, b) => a.arrival - b.arrival,
      lifo: (a, b) => b.arrival - a.arrival,
      priority: (a, b) => b.priority - a.priority || a.arrival - b.arrival,
    };
    const step = fc.record({
      leaves: fc.boolean(),
      priority: fc.nat(3),
      late: fc.nat(5), // somebody who stood elsewhere comes with an older arrival
      who: fc.nat(1000),
    });
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 200 }), (steps) => {
        const line = new WaitQueue<QueuePosition>(order);
        const model: QueuePosition[] = [];
        let arrival = 0;
        for (const { leaves, priority, late, who } of steps) {
          if (leaves && model.length > 0) {
            const [one] = model.splice(who % model.length, 1);
            line.remove(one);
          } else {
            arrival += 10;
            const one = { arrival: arrival - 7 * late - who / 1e6, priority };
            model.push(one);
            line.add(one);
          }
          const [next] = model.toSorted(before[order]);
          expect(line.first).toBe(next);
          expect(line.size).toBe(model.length);
          expect(line.hasEarlier({ arrival: Infinity, priority: -1 })).toBe(
            order !== 'lifo' && model.length > 0,
          );
        }
      }),
    );
  });
});
