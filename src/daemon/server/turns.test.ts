import { setImmediate as turn } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { Turns } from './turns.ts';

/** Connections that work for `ms` in each slice, on a clock that only work moves. */
function setUp() {
  let now = 0;
  const turns = new Turns({ now: () => now });
  const log: string[] = [];
  const work = (name: string, ms: number): void => {
    log.push(name);
    now += ms;
  };
  /** A connection that works for `slices` slices. */
  const connection = (name: string, ms: number, slices: number): void =>
    turns.wait(() => {
      work(name, ms);
      if (slices > 1) connection(name, ms, slices - 1);
    });
  return { turns, log, work, connection };
}

describe('turns', () => {
  test('several connections wait: each gets a slice in turn, and the event loop goes on between', async () => {
    const { log, connection } = setUp();
    for (const name of ['a', 'b', 'c']) connection(name, 0.2, 4);
    const perTurn: number[] = [];
    for (let before = 0; log.length < 12; before = log.length) {
      await turn();
      perTurn.push(log.length - before);
      expect(perTurn.length).toBeLessThan(20);
    }
    expect(log.join('')).toBe('abcabcabcabc');
    expect(Math.max(...perTurn)).toBeLessThanOrEqual(3); // 0.5 ms of work, to a slice
  });

  test('new bytes: a short slice while a connection waits', async () => {
    const { turns, work, connection } = setUp();
    turns.begin();
    work('alone', 0.4);
    expect(turns.isOver).toBe(false);
    work('alone', 0.1);
    expect(turns.isOver).toBe(true);
    connection('waiting', 0.1, 1);
    turns.begin();
    work('new', 0.05);
    expect(turns.isOver).toBe(true);
    await turn();
    turns.begin();
    work('alone again', 0.4);
    expect(turns.isOver).toBe(false);
  });

  test('time after the slice, in the same tick: counts in the turn', async () => {
    const { turns, log, work } = setUp();
    for (const name of ['a', 'b'])
      turns.wait(() => void Promise.resolve().then(() => work(name, 1)));
    await turn();
    expect(log).toEqual(['a']);
    await turn();
    expect(log).toEqual(['a', 'b']);
  });
});
