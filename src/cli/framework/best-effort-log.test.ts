import { describe, expect, test } from 'vitest';
import { bestEffortLog } from './best-effort-log.ts';

/** A pipe that accepts `capacity` bytes. */
function createPipe() {
  const pipe = { capacity: Infinity, received: '' };
  const write = (bytes: Buffer): number => {
    if (pipe.capacity === 0) throw new Error('EAGAIN');
    const accepted = bytes.subarray(0, pipe.capacity);
    pipe.capacity -= accepted.length;
    pipe.received += accepted;
    return accepted.length;
  };
  return { pipe, log: bestEffortLog(write) };
}

describe('best-effort log', () => {
  test('writes lines', () => {
    const { pipe, log } = createPipe();
    log('one');
    log('two');
    expect(pipe.received).toBe('one\ntwo\n');
  });

  test('drops lines that cannot be written, and reports how many', () => {
    const { pipe, log } = createPipe();
    pipe.capacity = 0;
    log('one');
    log('two');
    pipe.capacity = Infinity;
    log('three');
    log('four');
    expect(pipe.received).toBe('(2 lines lost)\nthree\nfour\n');
  });

  test('completes a partly written line before the next one', () => {
    const { pipe, log } = createPipe();
    pipe.capacity = 2;
    log('one');
    log('two');
    expect(pipe.received).toBe('on');
    pipe.capacity = Infinity;
    log('three');
    expect(pipe.received).toBe('one\n(1 line lost)\nthree\n');
  });
});
