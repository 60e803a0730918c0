import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Line, ORDERS, type Rank } from './wait-queue.ts';

describe('a line', () => {
  test.each(ORDERS)('%s: under any coming and going the next is who should be', (order) => {
    const before: Record<string, (a: Rank, b: Rank) => number> = {
      fifo: (a, b) => a.ticket - b.ticket,
      lifo: (a, b) => b.ticket - a.ticket,
      priority: (a, b) => b.priority - a.priority || a.ticket - b.ticket,
    };
    const step = fc.record({
      leaves: fc.boolean(),
      priority: fc.nat(3),
      late: fc.nat(5), // somebody who stood elsewhere comes with an older ticket
      who: fc.nat(1000),
    });
    fc.assert(
      fc.property(fc.array(step, { minLength: 1, maxLength: 200 }), (steps) => {
        const line = new Line<Rank>(order);
        const model: Rank[] = [];
        let ticket = 0;
        for (const { leaves, priority, late, who } of steps) {
          if (leaves && model.length > 0) {
            const [one] = model.splice(who % model.length, 1);
            line.remove(one);
          } else {
            ticket += 10;
            const one = { ticket: ticket - 7 * late - who / 1e6, priority };
            model.push(one);
            line.add(one);
          }
          const [next] = model.toSorted(before[order]);
          expect(line.first).toBe(next);
          expect(line.size).toBe(model.length);
          expect(line.isBefore({ ticket: Infinity, priority: -1 })).toBe(
            order !== 'lifo' && model.length > 0,
          );
        }
      }),
    );
  });
});
