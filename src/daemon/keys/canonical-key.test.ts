import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { addressText } from '../../adapters/http/address.ts';
import { bytesEndLikeIpv6, canonicalKeyOf, endsLikeIpv6 } from './canonical-key.ts';

describe('canonical key', () => {
  test.each([
    ['2001:db8:1:2:aaaa::1', '2001:db8:1:2::/64'],
    ['ip:2001:db8:1:2:aaaa::1', 'ip:2001:db8:1:2::/64'],
    ['ip:2001:DB8:1:2:0:0:0:1', 'ip:2001:db8:1:2::/64'],
    ['c:2001:db8::1', 'c:2001:db8:0:0::/64'],
    ['GET /a|fd00::1', 'GET /a|fd00:0:0:0::/64'],
    ['ip:[2001:db8:1:2::1]', 'ip:2001:db8:1:2::/64'],
    ['[2001:db8::1]', '2001:db8:0:0::/64'],
    ['ip:[::ffff:203.0.113.9]', 'ip:203.0.113.9'],
    ['x%::ffff:203.0.113.9', 'x%203.0.113.9'],
    ['::ffff:203.0.113.9%1', '203.0.113.9'],
    ['ip:2001:db8:1:2::1%eth0', 'ip:2001:db8:1:2::/64'],
    ['ip:2001:db8:1:2::1%1', 'ip:2001:db8:1:2::/64'],
    ['ip:[2001:db8:1:2::1%eth0.100]', 'ip:2001:db8:1:2::/64'],
    ['ip:::ffff:203.0.113.9', 'ip:203.0.113.9'],
    ['::FFFF:203.0.113.9', '203.0.113.9'],
    ...[
      'ip:203.0.113.9',
      '203.0.113.9',
      'c:203.0.113.9',
      'ff:203.0.113.9',
      '::1',
      '64:ff9b::7',
    ].map((key) => [key, key]),
    ...['', ':', '::', 'alice', 'a:b', '7::9', 'tenant:12:34', 'Module::add', 'x2001:db8::1'].map(
      (key) => [key, key],
    ),
    ...['ip:[203.0.113.9]', '203.0.113.9%eth0', '[]', ']', '%', '[alice]', 'x[2001:db8::1]'].map(
      (key) => [key, key],
    ),
    ...['2001:db8::1%', '2001:db8::1%a:b', '[2001:db8::1]]', '2001:db8::1]', '50%abc'].map(
      (key) => [key, key],
    ),
    ...['2001:db8::1:', '2001:db8::/64', 'deadbeefdeadbeef', 'key\xff::1'].map((key) => [key, key]),
  ])('%s: counts as %s', (key, expected) => {
    expect(canonicalKeyOf(key, 64)).toBe(expected);
  });

  test('random addresses: every spelling counts as the same network', () => {
    const group = fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 0xffff }));
    const address = fc.tuple(
      fc.integer({ min: 0x2000, max: 0xffff }),
      ...([group, group, group, group, group, group, group] as const),
    );
    fc.assert(
      fc.property(address, fc.constantFrom('', 'ip:', 'x|'), (groups, prefix) => {
        const network = groups.slice(0, 4).map((each) => each.toString(16));
        const expected = `${prefix}${network.join(':')}::/64`;
        const full = groups.map((each) => each.toString(16)).join(':');
        const others = [`[${full}]`, `${full}%eth0`, `[${full}%1]`];
        for (const text of [full, full.toUpperCase(), addressText(groups), ...others])
          expect(canonicalKeyOf(prefix + text, 64)).toBe(expected);
      }),
    );
  });

  test('random keys: bytes and text are told alike', () => {
    const key = fc
      .array(fc.constantFrom(...'0123456789abcfAFgx.::::%]['), { maxLength: 42 })
      .map((letters) => letters.join(''));
    fc.assert(
      fc.property(key, (text) => {
        const bytes = Buffer.from(`:${text}:`);
        expect(bytesEndLikeIpv6(bytes, 1, bytes.length - 1)).toBe(endsLikeIpv6(text));
      }),
      { numRuns: 5000 },
    );
  });
});
