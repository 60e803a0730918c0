import { describe, expect, test } from 'vitest';
import { RespParser, type RespValue } from '../../src/client/resp.ts';
import { parseQuota } from '../../src/throttle/response-headers.ts';
import { cpuMs } from '../support/clock-watch.ts';

/** Far above what linear work computes, far below what quadratic work does. */
const MAX_MS = 3000;

function msOf(work: () => void): number {
  const before = cpuMs();
  work();
  return cpuMs() - before;
}

describe('throttleFetch', () => {
  test.each([
    ['commas', ','],
    ['semicolons', ';'],
    ['quotes', '",'],
    ['items', 'a;r=1,'],
    ['empty strings', '"",'],
  ])('reads a RateLimit header of many %s in linear time', (_, part) => {
    const ratelimit = part.repeat(150_000 / part.length);
    expect(msOf(() => parseQuota(new Headers({ ratelimit }), 0))).toBeLessThan(MAX_MS);
  });
});

describe('daemon client', () => {
  test.each([
    ['items of an array', '*200000\r\n', ':1\r\n'.repeat(150_000), ':'],
    ['items of nested arrays', '*9\r\n'.repeat(7), `*100000\r\n${':1\r\n'.repeat(90_000)}`, '+'],
    ['a long string', '$1000000\r\n', 'x'.repeat(900_000), ''],
  ])('parses a reply that arrives in single bytes once: %s', (_, head, items, last) => {
    const parser = new RespParser();
    const replies: RespValue[] = [];
    const push = (text: string): boolean =>
      parser.push(Buffer.from(text), (reply) => replies.push(reply));
    push(head + items + last);
    const ms = msOf(() => {
      for (let n = 0; n < 5000; n++) expect(push('1')).toBe(true);
    });
    expect(ms).toBeLessThan(MAX_MS);
    expect(replies).toEqual([]);
  });

  test('ends a connection on which a line, or a reply in parts, has no end', () => {
    for (const text of ['+'.repeat(100_000), `*1000000\r\n${':1\r\n'.repeat(300_000)}`]) {
      expect(new RespParser().push(Buffer.from(text), () => {})).toBe(false);
    }
  });
});
