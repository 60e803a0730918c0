import { isIP } from 'node:net';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { clientKeyOf, isInNetwork, parseAddress, parseNetwork } from './address.ts';

describe('parseAddress', () => {
  test.each([
    ['203.0.113.9', '0:0:0:0:0:ffff:cb00:7109'],
    ['::ffff:203.0.113.9', '0:0:0:0:0:ffff:cb00:7109'],
    ['::FFFF:cb00:7109', '0:0:0:0:0:ffff:cb00:7109'],
    ['203.0.113.9:4711', '0:0:0:0:0:ffff:cb00:7109'],
    [' 203.0.113.9 ', '0:0:0:0:0:ffff:cb00:7109'],
    ['2001:db8::1', '2001:db8:0:0:0:0:0:1'],
    ['[2001:db8::1]:443', '2001:db8:0:0:0:0:0:1'],
    ['fe80::1%eth0', 'fe80:0:0:0:0:0:0:1'],
    ['::', '0:0:0:0:0:0:0:0'],
    ['1::', '1:0:0:0:0:0:0:0'],
    ['1:2:3:4:5:6:7:8', '1:2:3:4:5:6:7:8'],
    ['64:ff9b::1.2.3.4', '64:ff9b:0:0:0:0:102:304'],
  ])('%s', (text, groups) => {
    expect(
      parseAddress(text)
        ?.map((group) => group.toString(16))
        .join(':'),
    ).toBe(groups);
  });

  test.each([
    ...['', ' ', 'unknown', '_hidden', '1.2.3', '1.2.3.4.5', '256.1.1.1', '1.2.3.4:', '0x1.2.3.4'],
    ...['010.2.3.4', '1.2.3.00', '1..2.3', '1.2.3.', '.1.2.3', '1.2.3.4.', '1.2.3.-4', '+1.2.3.4'],
    ...[
      ':',
      ':::',
      '1::2::3',
      '1:2:3:4:5:6:7',
      '1:2:3:4:5:6:7:8:9',
      '12345::',
      'g::',
      '1:2:3:4:5:6:7::8',
    ],
    ...[
      '[::1',
      '::1]',
      '::1.2.3',
      '1.2.3.4::',
      '::1.2.3.4:1',
      `${'1'.repeat(200)}`,
      '1.2.3.4, 5.6.7.8',
    ],
  ])('refuses %j', (text) => {
    expect(parseAddress(text)).toBeUndefined();
  });

  test('never throws, and agrees with Node on what is an address', () => {
    const letters = fc.constantFrom(...'0123456789abcdefF:.:.%[]/ ,"x');
    const texts = fc.oneof(fc.string(), fc.string({ unit: letters }), fc.ipV4(), fc.ipV6());
    fc.assert(
      fc.property(texts, (text) => {
        const isBare = /^[\da-f:.]*$/i.test(text); // Node accepts no ports, brackets and zones
        const isAddress = parseAddress(text) !== undefined;
        if (isIP(text) !== 0) expect(isAddress).toBe(true);
        if (isAddress && isBare && !/^[\d.]+:\d+$/.test(text)) expect(isIP(text)).not.toBe(0);
      }),
      { numRuns: 2000 },
    );
  });
});

describe('parseNetwork and isInNetwork', () => {
  const holds = (network: string, text: string): boolean => {
    const [parsed, address] = [parseNetwork(network), parseAddress(text)];
    return parsed !== undefined && address !== undefined && isInNetwork(address, parsed);
  };

  test.each([
    ['10.0.0.0/8', '10.255.0.1', true],
    ['10.0.0.0/8', '::ffff:10.1.2.3', true],
    ['10.0.0.0/8', '11.0.0.1', false],
    ['10.0.0.0/8', 'a00::1', false],
    ['192.168.4.0/22', '192.168.7.255', true],
    ['192.168.4.0/22', '192.168.8.0', false],
    ['127.0.0.1', '127.0.0.1', true],
    ['127.0.0.1', '127.0.0.2', false],
    ['0.0.0.0/0', '8.8.8.8', true],
    ['0.0.0.0/0', '2001:db8::1', false],
    ['::ffff:10.0.0.0/104', '10.9.9.9', true],
    ['2001:db8::/33', '2001:db8:7fff::1', true],
    ['2001:db8::/33', '2001:db8:8000::1', false],
    ['::1', '::1', true],
  ])('%s and %s: %s', (network, address, expected) => {
    expect(holds(network, address)).toBe(expected);
  });

  test('parseNetwork: accepts spaces around it', () => {
    expect(holds(' 10.0.0.0/8', '10.1.2.3')).toBe(true);
  });

  test.each([
    ...['10.0.0.0/33', '::/129', '10.0.0.0/', '10.0.0.0/-1', '/8', 'loopback', '1.2.3.4/8/8', ''],
    ...['10.0.0.1:80/8', '10.0.0.1:80', '[::1]/64', '[::1]:80', 'fe80::1%eth0/64', 'fe80::%1'],
  ])('refuses %s', (text) => expect(parseNetwork(text)).toBeUndefined());
});

describe('clientKeyOf', () => {
  const clientKey = (text: string, bits: number): string =>
    clientKeyOf(parseAddress(text) ?? [], bits);

  test('is the IPv4 address in one spelling', () => {
    expect(clientKey('203.0.113.9', 64)).toBe('203.0.113.9');
    expect(clientKey('::ffff:203.0.113.9', 64)).toBe('203.0.113.9');
    expect(clientKey('::ffff:cb00:7109', 64)).toBe('203.0.113.9');
  });

  test('is the IPv6 network of the given prefix', () => {
    const [one, other] = ['2001:db8:1:2::1', '2001:db8:1:2:ffff:ffff::9'];
    expect(clientKey(one, 64)).toBe('2001:db8:1:2::/64');
    expect(clientKey(other, 64)).toBe(clientKey(one, 64));
    expect(clientKey('2001:db8:1:3::1', 64)).not.toBe(clientKey(one, 64));
    expect(clientKey('2001:db8:1:2ff::1', 56)).toBe('2001:db8:1:200::/56');
    expect(clientKey(one, 72)).toBe('2001:db8:1:2:0::/72');
    expect(clientKey(one, 128)).toBe('2001:db8:1:2:0:0:0:1/128');
    expect(clientKey(other, 128)).not.toBe(clientKey(one, 128));
  });
});
