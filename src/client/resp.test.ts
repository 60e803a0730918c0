import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { encodeReply, type ReplyValue } from '../daemon/protocols/resp/reply.ts';
import { encodeCommand, RespError, RespParser, type RespValue, toBinaryString } from './resp.ts';

function read(bytes: Buffer, size = bytes.length || 1): RespValue[] | undefined {
  const parser = new RespParser();
  const replies: RespValue[] = [];
  for (let at = 0; at < bytes.length; at += size) {
    if (!parser.push(bytes.subarray(at, at + size), (reply) => replies.push(reply)))
      return undefined;
  }
  return replies;
}

describe('RESP', () => {
  test('encodeCommand: lengths are in bytes', () => {
    expect(encodeCommand(['PING', toBinaryString('é')])).toBe(
      '*2\r\n$4\r\nPING\r\n$2\r\n\u00c3\u00a9\r\n',
    );
  });

  test('RespParser: parses every RESP type, in chunks of any size', () => {
    const bytes =
      '+OK\r\n-ERR no\r\n:-7\r\n,1.5\r\n,inf\r\n$-1\r\n_\r\n#t\r\n#f\r\n$2\r\n\u00c3\u00a9\r\n*0\r\n*-1\r\n%1\r\n$1\r\na\r\n*1\r\n:1\r\n';
    const replies = [
      'OK',
      new RespError('ERR no'),
      -7,
      1.5,
      Infinity,
      null,
      null,
      true,
      false,
      'é',
      [],
    ];
    for (const size of [1, 2, 3, 7, 1000]) {
      expect(read(Buffer.from(bytes, 'latin1'), size)).toEqual([...replies, null, { a: [1] }]);
    }
  });

  test('RespParser: parses every reply that the daemon encodes, in chunks of any size', () => {
    const { value } = fc.letrec<{ value: ReplyValue }>((tie) => ({
      value: fc.oneof(
        { maxDepth: 4 },
        fc.string({ unit: 'grapheme' }),
        fc.maxSafeInteger(),
        fc.boolean(),
        fc.constant(null),
        fc.array(tie('value'), { maxLength: 3 }),
        fc.dictionary(fc.string(), tie('value'), { maxKeys: 3, noNullPrototype: true }),
      ),
    }));
    fc.assert(
      fc.property(
        fc.array(value, { maxLength: 5 }),
        fc.integer({ min: 1, max: 50 }),
        (all, size) => {
          const bytes = Buffer.concat(
            all.map((each) => encodeReply(3, (reply) => reply.value(each))),
          );
          expect(read(bytes, size)).toEqual(all);
        },
      ),
    );
  });

  test.each(['HTTP/1.1\r\n', ':x\r\n', '$\r\n', '$9999999999\r\n', '*1\r\n'.repeat(100_000)])(
    'RespParser: refuses invalid and unbounded input: %#',
    (text) => {
      expect(read(Buffer.from(text))).toBe(undefined);
    },
  );

  test('RespParser: refuses a line above the maximum length', () => {
    expect(read(Buffer.alloc(2_000_000, '+'), 65_536)).toBe(undefined);
  });
});
