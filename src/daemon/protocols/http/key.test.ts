import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../../testing/virtual-clock.ts';
import { readHttpSection } from '../../config/http.ts';
import { createKeyExtractor, type KeyExtractor, type RequestHead } from './key.ts';
import { type IgnoredHeader, proxyWarning } from './proxy-warning.ts';

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

describe('header of a proxy that is not used', () => {
  function ignoredBy(options: unknown, headers: RequestHead['headers'], address?: string) {
    const ignored: IgnoredHeader[] = [];
    const report = (header: IgnoredHeader) => ignored.push(header);
    createKeyExtractor(readHttpSection(options, 'http'), report)(from(headers, address));
    return ignored.map(({ header, option }) => `${header} ${option}`);
  }

  const FORWARDED = { 'x-forwarded-for': '192.0.2.7' };

  test('from an address that trustProxy does not trust: is reported with the option to set', () => {
    const expected = ['x-forwarded-for http.trustProxy'];
    expect(ignoredBy({}, FORWARDED, '127.0.0.1')).toEqual(expected);
    expect(ignoredBy({ trustProxy: false }, FORWARDED, '127.0.0.1')).toEqual(expected);
    expect(ignoredBy({ trustProxy: ['10.0.0.0/8'] }, FORWARDED, '127.0.0.1')).toEqual(expected);
    expect(ignoredBy({}, { forwarded: 'for=192.0.2.7' }, '127.0.0.1')).toEqual([
      'forwarded http.trustProxy, and X-Forwarded-For in the proxy',
    ]);
    expect(ignoredBy({}, { 'sluice-key': 'ip:192.0.2.7' }, '127.0.0.1')).toEqual([
      'sluice-key http.key',
    ]);
  });

  test('trusted, absent, or not the source of the key: is not reported', () => {
    expect(ignoredBy({ trustProxy: ['127.0.0.1'] }, FORWARDED, '127.0.0.1')).toEqual([]);
    expect(ignoredBy({ trustProxy: 1 }, { 'x-forwarded-for': '127.0.0.1' }, '127.0.0.1')).toEqual(
      [],
    );
    expect(ignoredBy({ trustProxy: 1 }, { 'x-forwarded-for': 'unknown' }, '127.0.0.1')).toEqual([]);
    expect(ignoredBy({}, {}, '127.0.0.1')).toEqual([]);
    expect(ignoredBy({ key: { header: 'Sluice-Key' } }, FORWARDED, '127.0.0.1')).toEqual([]);
  });

  test('the log gets one line in ten minutes', () => {
    const clock = new VirtualClock();
    const lines: string[] = [];
    const warn = proxyWarning((level, _message, fields) => {
      lines.push(`${level} ${JSON.stringify(fields)}`);
    }, clock);
    const ignored = { header: 'forwarded', from: '127.0.0.1', option: 'http.trustProxy' };
    for (let n = 0; n < 3; n++) warn(ignored);
    expect(lines).toEqual([
      'warn {"header":"forwarded","from":"127.0.0.1","set":"http.trustProxy"}',
    ]);
    clock.advance(600_000);
    warn(ignored);
    expect(lines).toHaveLength(2);
  });
});
