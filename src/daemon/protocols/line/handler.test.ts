import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ResponseQueue } from '../../server/response-queue.ts';
import { lineProtocol } from './handler.ts';

/** Sends chunks to the protocol; returns the checked keys and the responses. */
function send(
  chunks: readonly (string | Buffer)[],
  {
    maxLine = 100,
    isAllowed = (key: string): boolean | Promise<boolean> => !key.startsWith('x'),
  } = {},
) {
  const checked: string[] = [];
  const responded: Buffer[] = [];
  const responses = new ResponseQueue(
    (bytes) => responded.push(bytes),
    () => {},
  );
  const handler = lineProtocol(
    (bytes, from, to) => {
      const key = bytes.toString('latin1', from, to);
      checked.push(key);
      return isAllowed(key);
    },
    () => maxLine,
  )(responses);
  const goesOn = chunks.map((chunk) => handler.onData(Buffer.from(chunk)));
  return {
    checked,
    goesOn,
    responses,
    handler,
    chunks: () => responded.length,
    responded: () => Buffer.concat(responded).toString('latin1'),
  };
}

const turn = () => new Promise((over) => setImmediate(over));

describe('line protocol', () => {
  test('one key: responses OK or NO', () => {
    const { checked, responded } = send(['alice\n', 'xenia\n']);
    expect(checked).toEqual(['alice', 'xenia']);
    expect(responded()).toBe('OK\nNO\n');
  });

  test('pipelined keys: responses in order', () => {
    const { responded } = send(['a\nx1\nb\nx2\nc\n']);
    expect(responded()).toBe('OK\nNO\nOK\nNO\nOK\n');
  });

  test('keys across chunks: are joined', () => {
    const { checked, responded } = send(['al', 'i', 'ce\nb', 'ob\n']);
    expect(checked).toEqual(['alice', 'bob']);
    expect(responded()).toBe('OK\nOK\n');
  });

  test('carriage return: belongs to the key unless it precedes the newline', () => {
    expect(send(['alice\r\n', 'b\rc\r', '\n', '\r\n']).checked).toEqual(['alice', 'b\rc', '']);
  });

  test('key of any bytes, or empty: is checked', () => {
    const keys = ['', '\0', '\xff\xfe', 'gr\xc3\xbcn', ' '];
    expect(send([Buffer.from(`${keys.join('\n')}\n`, 'latin1')]).checked).toEqual(keys);
  });

  test('key beyond the bound: ends the connection after earlier responses', () => {
    const { goesOn, checked, responded } = send([`ok\n${'y'.repeat(101)}\nlate\n`]);
    expect(goesOn).toEqual([false]);
    expect(checked).toEqual(['ok']);
    expect(responded()).toBe('OK\n');
  });

  test('key of exactly the bound: is checked, with a carriage return too', () => {
    const key = 'y'.repeat(100);
    expect(send([`${key}\n`, `${key}\r\n`, key, '\r', '\n']).checked).toEqual([key, key, key]);
  });

  test('line without end: ends the connection at the bound', () => {
    const { goesOn } = send(Array.from({ length: 102 }, () => 'z'));
    expect(goesOn.indexOf(false)).toBe(101);
  });

  test('pending remote decision: holds back later responses', async () => {
    let decide: (isAllowed: boolean) => void = () => {};
    const later = new Promise<boolean>((resolve) => {
      decide = resolve;
    });
    const isAllowed = (key: string) => (key === 'slow' ? later : key !== 'no');
    const { responses, responded } = send(['a\nslow\nno\n', 'b\n'], { isAllowed });
    expect(responded()).toBe('OK\n');
    expect(responses.pendingCount).toBe(3);
    decide(false);
    await turn();
    expect(responded()).toBe('OK\nNO\nNO\nOK\n');
    expect(responses.pendingCount).toBe(0);
  });

  test('remote decisions of one tick: go out in one write', async () => {
    const decisions: ((isAllowed: boolean) => void)[] = [];
    const isAllowed = () => new Promise<boolean>((decide) => decisions.push(decide));
    const { responded, chunks } = send(['a\n'.repeat(300)], { isAllowed });
    for (const decide of decisions.slice(0, 200)) decide(true);
    await turn();
    expect(responded()).toBe('OK\n'.repeat(200));
    expect(chunks()).toBe(1);
  });

  test('too many pending decisions: keeps the rest as backlog', async () => {
    const never = new Promise<boolean>(() => {});
    const { checked, goesOn, handler } = send(['a\n'.repeat(3000), '\n'], {
      isAllowed: () => never,
    });
    expect(checked).toHaveLength(1026); // one beyond the bound, and one more with the second chunk
    expect(goesOn).toEqual([true, true]);
    expect(handler.hasBacklog).toBe(true);
  });

  test('random chunk boundaries: do not change responses', () => {
    const anyKey = fc.string({ unit: fc.constantFrom('a', 'x', '\r', 'é', '\0'), maxLength: 5 });
    fc.assert(
      fc.property(fc.array(anyKey, { maxLength: 20 }), fc.array(fc.nat(9)), (keys, cuts) => {
        const bytes = Buffer.from(keys.map((text) => `${text}\n`).join(''));
        const chunks: Buffer[] = [];
        let at = 0;
        for (const length of cuts) {
          chunks.push(bytes.subarray(at, at + length));
          at += length;
        }
        const cut = send([...chunks, bytes.subarray(at)]);
        const whole = send([bytes]);
        expect(cut.checked).toEqual(whole.checked);
        expect(cut.responded()).toBe(whole.responded());
      }),
    );
  });
});
