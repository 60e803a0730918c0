import { describe, expect, test } from 'vitest';
import { readHttpSection } from '../../config/http.ts';
import { createKeyExtractor, type KeyExtractor, type RequestHead } from './key.ts';

const extractorFor = (options: unknown): KeyExtractor =>
  createKeyExtractor(readHttpSection(options, 'http'));

const from = (headers: RequestHead['headers'], remoteAddress?: string): RequestHead => ({
  headers,
  socket: { remoteAddress },
});

describe('key of a request', () => {
  test('default: the address of the connection, headers are ignored', () => {
    const keyOf = extractorFor({});
    expect(keyOf(from({ 'x-forwarded-for': '6.6.6.6' }, '::ffff:192.0.2.1'))).toBe('192.0.2.1');
    expect(keyOf(from({}, '2001:db8:1:2::9'))).toBe('2001:db8:1:2::9'); // counted as its network
    expect(keyOf(from({}))).toBeUndefined(); // Unix sockets have no address
  });

  test('trusted proxy: the client in X-Forwarded-For', () => {
    const keyOf = extractorFor({ trustProxy: ['127.0.0.1'], prefix: 'ip:' });
    const via = (list: string, address: string) =>
      keyOf(from({ 'x-forwarded-for': list }, address));
    expect(via('6.6.6.6, 192.0.2.1', '127.0.0.1')).toBe('ip:192.0.2.1');
    expect(via('192.0.2.1', '192.0.2.9')).toBe('ip:192.0.2.9');
    expect(extractorFor({ trustProxy: 1 })(from({ 'x-forwarded-for': '192.0.2.1' }))).toBe(
      '192.0.2.1',
    );
  });

  test('configured header: its value, and no key without it', () => {
    const keyOf = extractorFor({ key: { header: 'X-Api-Key' }, prefix: 'schlüssel:' });
    expect(keyOf(from({ 'x-api-key': 'abc' }))).toBe('schl\xc3\xbcssel:abc');
    expect(keyOf(from({ 'x-api-key': '' }, '192.0.2.1'))).toBeUndefined();
    expect(keyOf(from({}, '192.0.2.1'))).toBeUndefined();
  });
});
