import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Heap } from './heap.ts';

test('Heap: pops items in order, also after retain() removed some of them', () => {
  fc.assert(
    fc.property(fc.array(fc.nat(100)), fc.nat(5), (numbers, odd) => {
      const heap = new Heap<number>((a, b) => a < b);
      for (const n of numbers) heap.push(n);
      heap.retain((n) => n % 5 !== odd);
      const wanted = numbers.filter((n) => n % 5 !== odd).sort((a, b) => a - b);
      expect(heap.size).toBe(wanted.length);
      expect(heap.peek()).toBe(wanted[0]);
      expect(wanted.map(() => heap.pop())).toEqual(wanted);
      expect(heap.pop()).toBe(undefined);
    }),
  );
});
