import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ResponseQueue } from '../../server/response-queue.ts';
import { lineProtocol } from './handler.ts';

/** Talks to the protocol in these pieces; what was asked and what was answered. */
function talk(
  pieces: readonly (string | Buffer)[],
  {
    maxLine = 100,
    isAllowed = (key: string): boolean | Promise<boolean> => !key.startsWith('x'),
  } = {},
) {
  const asked: string[] = [];
  const said: Buffer[] = [];
  const responses = new ResponseQueue(
    (bytes) => said.push(bytes),
    () => {},
  );
  const conversation = lineProtocol(
    (bytes, from, to) => {
      const key = bytes.toString('latin1', from, to);
      asked.push(key);
      return isAllowed(key);
    },
    () => maxLine,
  )(responses);
  const fine = pieces.map((piece) => conversation.onData(Buffer.from(piece)));
  return {
    asked,
    fine,
    answers: responses,
    conversation,
    pieces: () => said.length,
    said: () => Buffer.concat(said).toString('latin1'),
  };
}

const turn = () => new Promise((over) => setImmediate(over));

describe('the line protocol', () => {
  test('answers a tag with three bytes', () => {
    const { asked, said } = talk(['alice\n', 'xenia\n']);
    expect(asked).toEqual(['alice', 'xenia']);
    expect(said()).toBe('OK\nNO\n');
  });

  test('answers many at once, in their order', () => {
    const { said } = talk(['a\nx1\nb\nx2\nc\n']);
    expect(said()).toBe('OK\nNO\nOK\nNO\nOK\n');
  });

  test('a tag may come in pieces, and two in one', () => {
    const { asked, said } = talk(['al', 'i', 'ce\nb', 'ob\n']);
    expect(asked).toEqual(['alice', 'bob']);
    expect(said()).toBe('OK\nOK\n');
  });

  test('a carriage return before the newline is not part of the tag, one elsewhere is', () => {
    expect(talk(['alice\r\n', 'b\rc\r', '\n', '\r\n']).asked).toEqual(['alice', 'b\rc', '']);
  });

  test('any bytes are a tag, the empty one too', () => {
    const tags = ['', '\0', '\xff\xfe', 'gr\xc3\xbcn', ' '];
    expect(talk([Buffer.from(`${tags.join('\n')}\n`, 'latin1')]).asked).toEqual(tags);
  });

  test('a line over the bound ends the conversation after what was asked before it', () => {
    const { fine, asked, said } = talk([`ok\n${'y'.repeat(101)}\nlate\n`]);
    expect(fine).toEqual([false]);
    expect(asked).toEqual(['ok']);
    expect(said()).toBe('OK\n');
  });

  test('a line of just the bound is fine, with a carriage return too', () => {
    const key = 'y'.repeat(100);
    expect(talk([`${key}\n`, `${key}\r\n`, key, '\r', '\n']).asked).toEqual([key, key, key]);
  });

  test('a line without an end is given up at the bound, however slowly it comes', () => {
    const { fine } = talk(Array.from({ length: 102 }, () => 'z'));
    expect(fine.indexOf(false)).toBe(101);
  });

  test('an answer that somebody else owes holds back those behind it', async () => {
    let decide: (isAllowed: boolean) => void = () => {};
    const later = new Promise<boolean>((resolve) => {
      decide = resolve;
    });
    const isAllowed = (key: string) => (key === 'slow' ? later : key !== 'no');
    const { answers, said } = talk(['a\nslow\nno\n', 'b\n'], { isAllowed });
    expect(said()).toBe('OK\n');
    expect(answers.pendingCount).toBe(3);
    decide(false);
    await turn();
    expect(said()).toBe('OK\nNO\nNO\nOK\n');
    expect(answers.pendingCount).toBe(0);
  });

  test('answers that somebody else gives together go out in one piece', async () => {
    const decisions: ((isAllowed: boolean) => void)[] = [];
    const isAllowed = () => new Promise<boolean>((decide) => decisions.push(decide));
    const { said, pieces } = talk(['a\n'.repeat(300)], { isAllowed });
    for (const decide of decisions.slice(0, 200)) decide(true);
    await turn();
    expect(said()).toBe('OK\n'.repeat(200));
    expect(pieces()).toBe(1);
  });

  test('keeps questions while too many answers are owed, and says that it is behind', async () => {
    const never = new Promise<boolean>(() => {});
    const { asked, fine, conversation } = talk(['a\n'.repeat(3000), '\n'], {
      isAllowed: () => never,
    });
    expect(asked).toHaveLength(1026); // what is over the bound, and one more with the second piece
    expect(fine).toEqual([true, true]);
    expect(conversation.hasBacklog).toBe(true);
  });

  test('says the same however the bytes are cut', () => {
    const tag = fc.string({ unit: fc.constantFrom('a', 'x', '\r', 'é', '\0'), maxLength: 5 });
    fc.assert(
      fc.property(fc.array(tag, { maxLength: 20 }), fc.array(fc.nat(9)), (tags, cuts) => {
        const bytes = Buffer.from(tags.map((own) => `${own}\n`).join(''));
        const pieces: Buffer[] = [];
        let at = 0;
        for (const length of cuts) {
          pieces.push(bytes.subarray(at, at + length));
          at += length;
        }
        const cut = talk([...pieces, bytes.subarray(at)]);
        const whole = talk([bytes]);
        expect(cut.asked).toEqual(whole.asked);
        expect(cut.said()).toBe(whole.said());
      }),
    );
  });
});
