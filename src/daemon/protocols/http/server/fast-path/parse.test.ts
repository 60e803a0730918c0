/** `equivalence.test.ts` compares this parser with that of Node. */

import { describe, expect, test } from 'vitest';
import { MAX_HEADER_BYTES, MAX_HEADERS } from '../../bounds.ts';
import { type ParsedCheck, ResponseWriter, tryParseCheck, type Unparsed } from './parse.ts';

const FIRST = 'GET /check?key=a HTTP/1.1';

const parse = (text: string): ParsedCheck | Unparsed =>
  tryParseCheck(Buffer.from(text, 'latin1'), 0, { remoteAddress: '::1' });

const read = (text: string): ParsedCheck | undefined => {
  const check = parse(text);
  return typeof check === 'string' ? undefined : check;
};

const withLines = (...lines: string[]): string => [...lines, '', ''].join('\r\n');

const isPlain = (...headers: string[]): boolean =>
  read(withLines(FIRST, 'Host: a', ...headers)) !== undefined;

const headOf = (bytes: number): string => {
  const rest = withLines(FIRST, 'Host: a', 'X-Long: ').length;
  return withLines(FIRST, 'Host: a', `X-Long: ${'a'.repeat(bytes - rest)}`);
};

const numbered = (count: number): string[] =>
  Array.from({ length: count }, (_, n) => `X-${n}: ${n}`);

describe('fast-path parser', () => {
  test('plain check: is parsed to its end; its beginning is incomplete', () => {
    const text = withLines(FIRST, 'Host: localhost', 'X-Real-IP:192.0.2.1');
    const bytes = Buffer.from(`before${text}GET /che`);
    expect(tryParseCheck(bytes, 6, {})).toEqual({
      method: 'GET',
      url: '/check?key=a',
      headers: { host: 'localhost', 'x-real-ip': '192.0.2.1' },
      socket: {},
      end: 6 + text.length,
    });
    expect(tryParseCheck(bytes, 6 + text.length, {})).toBe('incomplete');
    for (let n = 0; n < text.length; n++)
      expect([n, parse(text.slice(0, n))]).toEqual([n, 'incomplete']);
  });

  test('headers like those of the last check, or nearly: are read as if they came first', () => {
    const heads = [
      [],
      ['X-A: 1'],
      ['X-A: 2'],
      ['X-A: 1', 'X-B: 1'],
      ['X-A: 1', 'X-A: 1'],
      ['X-A:'],
    ];
    const texts = heads.map((headers) => withLines(FIRST, 'Host: a', ...headers));
    const first = ['b', 'c', 'd', 'e', 'f', 'g'].map((path, n) => {
      parse(withLines(FIRST, `Host: ${path}`)); // others than those of the last check
      return parse(texts[n]);
    });
    for (const before of texts)
      for (const [n, text] of texts.entries()) {
        parse(before);
        expect(parse(text)).toEqual(first[n]);
        expect(read(text.slice(0, -1))).toBeUndefined();
      }
    const long = headOf(MAX_HEADER_BYTES);
    expect([parse(long), parse(long.replace('key=a', 'key=ab'))]).toEqual([
      expect.anything(),
      'other',
    ]);
  });

  test('beginning of a request that is not plain: is left to Node', () => {
    const beginnings = ['GET /checks', 'GET /h', 'P', 'GET /check HTTP/1.0', 'GET /check?a b'];
    const headers = [
      'X_',
      ' X',
      ':',
      'X-A:  ',
      'X-A: b\r\r',
      'X-A:\r',
      'X-A: b \r',
      'X-A: é',
      '\r\r',
    ];
    for (const header of headers) beginnings.push(`${FIRST}\r\nHost: a\r\n${header}`);
    beginnings.push(headOf(MAX_HEADER_BYTES + 10).slice(0, -3));
    for (const text of beginnings) expect([text, parse(text)]).toEqual([text, 'other']);
  });

  test('other path, method, version or no Host: is left to Node', () => {
    const paths = ['/check', '/check?', '/check?key=a%20b&cost=1'];
    for (const path of paths)
      expect(read(withLines(`GET ${path} HTTP/1.1`, 'Host: a'))?.url).toBe(path);
    const others = [
      '/checks',
      '/check/',
      '/',
      '/healthz',
      '/check?key=é',
      '/check?a b',
      '/check?a#b',
    ];
    for (const path of others)
      expect(read(withLines(`GET ${path} HTTP/1.1`, 'Host: a'))).toBeUndefined();
    for (const first of [
      'POST /check HTTP/1.1',
      'GET /check HTTP/1.0',
      'GET /check',
      'get /check HTTP/1.1',
    ])
      expect(read(withLines(first, 'Host: a'))).toBeUndefined();
    expect(read(withLines(FIRST))).toBeUndefined(); // no Host
  });

  test('headers that parsers read differently: are left to Node', () => {
    for (const header of ['Accept: */*', 'connection: Keep-Alive', 'X-A:b', 'X-A: b c']) {
      expect([header, isPlain(header)]).toEqual([header, true]);
    }
    const ambiguous = [
      'Content-Length: 0',
      'Transfer-Encoding: chunked',
      'Connection: close',
      'Host: b',
    ];
    ambiguous.push(
      'Expect: 100-continue',
      'Upgrade: h2c',
      'X-A : b',
      'X-A: b ',
      'X-A:  b',
      'X-A:',
      'X-A: é',
    );
    ambiguous.push(
      'X-A: b\r\n c',
      'X-A: b\nc',
      'X-A: b\rc',
      'X_A: b',
      'X-A: \t',
      'X-A',
      ': b',
      ' X-A: b',
    );
    for (const header of ambiguous) expect([header, isPlain(header)]).toEqual([header, false]);
    expect(isPlain('X-A: b', 'x-a: b')).toBe(false);
  });

  test('size and number of headers: bounded like in Node', () => {
    expect(read(headOf(MAX_HEADER_BYTES))?.end).toBe(MAX_HEADER_BYTES);
    expect(read(headOf(MAX_HEADER_BYTES + 1))).toBeUndefined();
    expect(isPlain(...numbered(MAX_HEADERS - 1))).toBe(true);
    expect(isPlain(...numbered(MAX_HEADERS))).toBe(false);
  });
});

describe('fast-path response', () => {
  test('encoding: Date by the second, body as bytes', () => {
    const writer = new ResponseWriter();
    const response = { status: 499, headers: ['A', 'b'], body: 'é' };
    const head = 'HTTP/1.1 499 unknown\r\nA: b\r\nContent-Length: 2\r\n';
    const rest = 'Connection: keep-alive\r\n';
    const at = (second: string) => `Date: Thu, 01 Jan 1970 00:00:${second} GMT\r\n`;
    expect(writer.write(response, 1999, 0)).toBe(`${head}${at('01')}${rest}\r\n\xc3\xa9`);
    expect(writer.write(response, 2000, 0)).toBe(`${head}${at('02')}${rest}\r\n\xc3\xa9`);
    expect(writer.write(response, 2001, 5500)).toContain(`${rest}Keep-Alive: timeout=5\r\n\r\n`);
  });
});
