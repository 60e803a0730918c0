import { describe, expect, test } from 'vitest';
import { bestEffortLog } from './best-effort-log.ts';

/** Somebody who takes so many bytes, and no more until told. */
function reader() {
  const own = { takes: Infinity, heard: '' };
  const write = (bytes: Buffer): number => {
    if (own.takes === 0) throw new Error('EAGAIN');
    const taken = bytes.subarray(0, own.takes);
    own.takes -= taken.length;
    own.heard += taken;
    return taken.length;
  };
  return { own, note: bestEffortLog(write) };
}

describe('a log that stops nobody', () => {
  test('writes lines', () => {
    const { own, note } = reader();
    note('one');
    note('two');
    expect(own.heard).toBe('one\ntwo\n');
  });

  test('loses what nobody takes, and says how much', () => {
    const { own, note } = reader();
    own.takes = 0;
    note('one');
    note('two');
    own.takes = Infinity;
    note('three');
    note('four');
    expect(own.heard).toBe('(2 lines lost)\nthree\nfour\n');
  });

  test('ends a line it has begun before it begins another', () => {
    const { own, note } = reader();
    own.takes = 2;
    note('one');
    note('two');
    expect(own.heard).toBe('on');
    own.takes = Infinity;
    note('three');
    expect(own.heard).toBe('one\n(1 line lost)\nthree\n');
  });
});
