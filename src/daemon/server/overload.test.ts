import { describe, expect, test } from 'vitest';
import { Arrival, Overload } from './overload.ts';
import { CHUNK_BYTES } from './read-buffer.ts';

/** A clock that a test moves; the event loop of the test is never idle on it. */
function setUp(isOpen = true, count = 4) {
  let now = 1000;
  const clock = { now: () => now };
  const overload = new Overload(clock, { maxAgeMs: 100, isOpen });
  /** Lets the event loop turn twice, so that a poll is recorded at this instant. */
  const poll = async (): Promise<void> => {
    for (let n = 0; n < 2; n++) {
      new Arrival(overload, now).beginChunk(1, now);
      overload.isShedding = false;
      await new Promise((turn) => setImmediate(turn));
      now += 2;
    }
  };
  const pass = (ms: number): void => {
    now += ms;
  };
  /** Connections that all do the same. */
  const connections = Array.from({ length: count }, () => new Arrival(overload, now));
  const arrival = {
    resume: (at: number) => {
      for (const each of connections) each.resume(at);
    },
    readAhead: (bytes: number, at: number): number =>
      Math.max(...connections.map((each) => each.readAhead(bytes, at))),
    beginReadAhead: (after: number, at: number) => {
      for (const each of connections) each.beginReadAhead(after, at);
    },
    set isHeldBack(value: boolean) {
      for (const each of connections) each.isHeldBack = value;
    },
    set isBehind(value: boolean) {
      for (const each of connections) each.isBehind = value;
    },
  };
  const isLastShed = (begin: (each: Arrival) => void): boolean => {
    for (const each of connections) begin(each);
    const { isShedding } = overload;
    overload.isShedding = false;
    return isShedding;
  };
  /** Whether a chunk that is read now is shed, of the last connection. */
  const read = (bytes = 10): boolean => isLastShed((each) => each.beginChunk(bytes, now));
  const readRest = (): boolean => isLastShed((each) => each.beginRest(now));
  return { overload, arrival, poll, pass, read, readRest, now: () => now };
}

describe('overload', () => {
  test('overload: one pause sheds nothing, however long it is', async () => {
    const { poll, pass, read } = setUp();
    await poll();
    pass(5000);
    expect(read()).toBe(false);
    await poll();
    expect(read()).toBe(false);
  });

  test('overload: three connections that pipeline without pause are not shed', async () => {
    const { poll, pass, read, readRest } = setUp(true, 3);
    await poll();
    read(CHUNK_BYTES);
    for (let n = 0; n < 40; n++) {
      await poll();
      pass(20);
      expect(readRest()).toBe(false);
    }
  });

  test('overload: turns that stay too long shed what was read in them, until they are short', async () => {
    const { poll, pass, read } = setUp();
    await poll();
    pass(150);
    expect(read()).toBe(false); // the first that is too old
    await poll();
    pass(150);
    expect(read()).toBe(true);
    await poll();
    await poll();
    expect(read()).toBe(false);
  });

  test.each([0.3, 0.5, 0.9])(
    'overload: of checks that wait %d ms longer with each ms, none is decided that is too old',
    async (growth) => {
      const { overload, arrival, poll, pass, now } = setUp();
      const decided: number[] = [];
      const shed: number[] = [];
      await poll();
      const startedAt = now();
      while (now() - startedAt < 400) {
        await poll();
        pass(1);
        const age = (now() - startedAt) * growth;
        arrival.beginReadAhead(now() - age, now());
        (overload.isShedding ? shed : decided).push(age);
        overload.isShedding = false;
      }
      expect(shed.length).toBeGreaterThan(5);
      expect(Math.max(...decided)).toBeLessThanOrEqual(100);
      expect(Math.min(...shed)).toBeGreaterThan(80);
    },
  );

  test('overload: checks that are old all the time, and never too old, are decided', async () => {
    const { overload, arrival, poll, now } = setUp();
    await poll();
    for (let n = 0; n < 60; n++) {
      await poll();
      arrival.beginReadAhead(now() - 70, now());
      expect(overload.isShedding).toBe(false);
    }
  });

  test('overload: a connection that waits for its turn sheds what it has read before', async () => {
    const { poll, pass, read, readRest } = setUp();
    await poll();
    expect(read(CHUNK_BYTES)).toBe(false);
    const verdicts: boolean[] = [];
    for (let n = 0; n < 10; n++) {
      await poll(); // others are processed meanwhile
      pass(20);
      verdicts.push(readRest());
    }
    // Old at 48 ms, too old at 96 ms, when it was old for 48 ms.
    expect(verdicts).toEqual([...Array(4).fill(false), ...Array(6).fill(true)]);
  });

  test('overload: bytes behind a full chunk are as old as that, if the connection is not read meanwhile', async () => {
    const { arrival, poll, pass, read, now } = setUp();
    await poll();
    read(CHUNK_BYTES);
    pass(90);
    await poll();
    arrival.resume(now());
    expect(read(CHUNK_BYTES)).toBe(false);
    pass(60);
    await poll();
    arrival.resume(now());
    expect(read(100)).toBe(true);
    await poll();
    expect(read(100)).toBe(false); // the chunk before was not full: nothing was left
  });

  test('overload: bytes that were read ahead are as old as when they were read', async () => {
    const { overload, arrival, poll, pass, now } = setUp();
    const verdicts: boolean[] = [];
    await poll();
    const arrived: number[] = [];
    for (let n = 0; n < 4; n++) {
      arrived.push(arrival.readAhead(10, now()));
      pass(30);
      await poll();
    }
    for (const after of arrived) {
      pass(20);
      await poll();
      arrival.beginReadAhead(after, now());
      verdicts.push(overload.isShedding);
      overload.isShedding = false;
    }
    expect(verdicts).toEqual([false, false, false, true]); // all are too old, for 50 ms since the first
    arrival.beginReadAhead(arrival.readAhead(10, now()), now());
    expect(overload.isShedding).toBe(false);
  });

  test('overload: a client that sends more than is read ahead may have more, until a poll finds nothing', async () => {
    const { arrival, poll, pass, now } = setUp();
    await poll();
    const fullAt = now();
    arrival.readAhead(10, fullAt);
    arrival.isBehind = true;
    for (let n = 0; n < 3; n++) {
      pass(30);
      expect(arrival.readAhead(10, now())).toBe(fullAt);
    }
    pass(1);
    await poll(); // nothing to read
    await poll();
    expect(arrival.readAhead(10, now())).toBeGreaterThan(fullAt + 90);
  });

  test('overload: a client that does not read its responses is not shed', async () => {
    const { arrival, poll, pass, read } = setUp();
    await poll();
    for (let n = 0; n < 5; n++) {
      arrival.isHeldBack = true;
      pass(500);
      expect(read()).toBe(false);
      await poll();
    }
  });

  test('overload: counts what is shed, and reports it for a while', async () => {
    const { overload, poll, pass, read } = setUp();
    await poll();
    pass(5000);
    read();
    await poll();
    pass(150);
    expect(read()).toBe(true);
    expect(overload.isRecent).toBe(false);
    overload.countShed(true);
    overload.countShed(true);
    expect([overload.shedCount, overload.isRecent]).toEqual([2, true]);
    pass(5001);
    expect(overload.isRecent).toBe(false);
  });
});
