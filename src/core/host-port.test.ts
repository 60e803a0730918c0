import { isIPv4, isIPv6 } from 'node:net';
import { describe, expect, test } from 'vitest';
import {
  formatHostPort,
  isIpv4,
  isIpv6,
  isLoopbackHost,
  isPort,
  parseHostPort,
  parseSocketPath,
} from './host-port.ts';
import { seededRandom } from './random.ts';

describe('host and port', () => {
  test.each([
    ['127.0.0.1:7611', { host: '127.0.0.1', port: 7611 }],
    ['sluice.internal:1', { host: 'sluice.internal', port: 1 }],
    ['[::1]:65535', { host: '::1', port: 65_535 }],
    ['[fe80::1%eth0]:7611', { host: 'fe80::1%eth0', port: 7611 }],
    ['[::ffff:10.0.0.1]:0', { host: '::ffff:10.0.0.1', port: 0 }],
    ['sluice.internal', { host: 'sluice.internal' }],
    ['[::1]', { host: '::1' }],
    [':7611', { port: 7611 }],
    ['7611', { port: 7611 }],
  ])('%s is parsed', (text, expected) => {
    expect(parseHostPort(text)).toEqual(expected);
  });

  test.each([
    ...[
      '',
      ':',
      'a:',
      'a b:1',
      'a/b',
      '::1',
      '::1:7611',
      '[::1',
      '[]:1',
      '[host]:1',
      '[1.2.3.4]:1',
    ],
    ...['123456', 'a:-1', 'a:x', '1.2.3:80', '256.1.1.1:80', '010.1.1.1:80', '1.2.3.4.'],
    ...['[::1]7611', '[fe80::1%]:1', 'http://a:1'],
  ])('%s is refused', (text) => {
    expect(parseHostPort(text)).toBeUndefined();
  });

  test('a port is 1 to 65535, or 0 where the system may choose', () => {
    const ports = [0, 1, 65_535, 65_536, 1.5, '80'];
    expect(ports.map((port) => isPort(port))).toEqual([false, true, true, false, false, false]);
    expect(isPort(0, 0)).toBe(true);
  });

  test('a formatted address parses to the same host and port', () => {
    for (const host of ['10.0.0.1', 'a.b', '::1', 'fe80::1%eth0']) {
      expect(parseHostPort(formatHostPort({ host, port: 80 }))).toEqual({ host, port: 80 });
    }
  });

  test('isIpv4 and isIpv6 agree with Node on random texts', () => {
    const random = seededRandom(7);
    const parts = [
      '0',
      '1',
      '25',
      '255',
      '256',
      '01',
      'f',
      'ffff',
      'fffff',
      '.',
      '.',
      ':',
      ':',
      '::',
      '1.2.3.4',
      'g',
    ];
    for (let n = 0; n < 20_000; n++) {
      const length = 1 + Math.floor(random() * 12);
      const pick = (): string => parts[Math.floor(random() * parts.length)] as string;
      const text = Array.from({ length }, pick).join('');
      expect([text, isIpv4(text), isIpv6(text)]).toEqual([text, isIPv4(text), isIPv6(text)]);
    }
  });

  test('loopback is 127.0.0.0/8, ::1 and localhost', () => {
    const hosts = [
      '127.0.0.1',
      '127.9.9.9',
      '::1',
      'localhost',
      '10.0.0.1',
      '127.example.org',
      '::',
    ];
    expect(hosts.map(isLoopbackHost)).toEqual([true, true, true, true, false, false, false]);
  });

  test('a Unix socket begins with unix:, /, ./ or ../', () => {
    const texts = ['/run/a.sock', './a', '../a', 'unix:a', 'a', '127.0.0.1:1', '.a'];
    expect(texts.map(parseSocketPath)).toEqual(['/run/a.sock', './a', '../a', 'a', ...Array(3)]);
  });
});
