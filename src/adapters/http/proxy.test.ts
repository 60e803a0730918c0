import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { OptionReader } from '../../core/options.ts';
import { clientKeyOf, type IpAddress, parseAddress } from './address.ts';
import { readTrustProxy, type TrustProxy } from './proxy.ts';

const text = (client: IpAddress | undefined): string | undefined =>
  client && clientKeyOf(client, 128);

function client(trustProxy: TrustProxy, from: string | undefined, forwarded?: string) {
  return text(
    readTrustProxy(new OptionReader('', { trustProxy }))?.(parseAddress(from ?? ''), forwarded),
  );
}

describe('readTrustProxy: the client is', () => {
  const chain = '6.6.6.6, 203.0.113.9, 10.0.0.7';

  test('the connection, if no proxy is trusted', () => {
    expect(client(false, '10.0.0.2', chain)).toBe('10.0.0.2');
    expect(client(0, '10.0.0.2', chain)).toBe('10.0.0.2');
    expect(client([], '10.0.0.2', chain)).toBe('10.0.0.2');
  });

  test('the given number of hops from the right', () => {
    expect(client(1, '10.0.0.2', chain)).toBe('10.0.0.7');
    expect(client(2, '10.0.0.2', chain)).toBe('203.0.113.9');
    expect(client(9, '10.0.0.2', chain)).toBe('6.6.6.6');
  });

  test('the first address from the right outside the trusted networks', () => {
    expect(client(['10.0.0.0/8'], '10.0.0.2', chain)).toBe('203.0.113.9');
    expect(client(['10.0.0.0/8'], '::ffff:10.0.0.2', chain)).toBe('203.0.113.9');
    expect(client(['10.0.0.2', '10.0.0.7'], '10.0.0.2', chain)).toBe('203.0.113.9');
    expect(client(['10.0.0.0/8'], '9.9.9.9', chain)).toBe('9.9.9.9');
  });

  test('the first entry, if all proxies are trusted', () => {
    expect(client(true, '10.0.0.2', chain)).toBe('6.6.6.6');
    expect(client(true, '10.0.0.2', '6.6.6.6')).toBe('6.6.6.6');
  });

  test('the connection, if the header is missing', () => {
    expect(client(true, '10.0.0.2')).toBe('10.0.0.2');
    expect(client(true, '10.0.0.2', '')).toBe('10.0.0.2');
    expect(client(1, undefined, '203.0.113.9')).toBe('203.0.113.9'); // a local socket
    expect(client(['10.0.0.0/8'], undefined, '203.0.113.9')).toBeUndefined();
  });

  test('the last valid address before an invalid entry', () => {
    expect(client(true, '10.0.0.2', '6.6.6.6, unknown, 10.0.0.7')).toBe('10.0.0.7');
    expect(client(['10.0.0.0/8'], '10.0.0.2', '6.6.6.6, "; drop, 10.0.0.7')).toBe('10.0.0.7');
    expect(client(5, '10.0.0.2', ',,,')).toBe('10.0.0.2');
    expect(client(true, '10.0.0.2', '203.0.113.9,')).toBe('10.0.0.2');
  });

  test('found in entries with ports and brackets', () => {
    expect(client(1, '10.0.0.2', '203.0.113.9:51000')).toBe('203.0.113.9');
    expect(client(1, '10.0.0.2', '[2001:db8::1]:51000')).toBe('2001:db8:0:0:0:0:0:1/128');
  });
});

test('readTrustProxy: nothing that a client puts in the header changes its address', () => {
  const letters = fc.constantFrom(...'0123456789abcdef:.,[] %');
  const lies = fc.oneof(fc.string(), fc.string({ unit: letters }), fc.array(fc.ipV4()).map(String));
  fc.assert(
    fc.property(lies, (lie) => {
      expect(client(['10.0.0.0/8'], '10.0.0.2', `${lie}, 203.0.113.9`)).toBe('203.0.113.9');
      expect(client(1, '10.0.0.2', `${lie}, 203.0.113.9`)).toBe('203.0.113.9');
    }),
  );
});

test('readTrustProxy: never throws, whatever the header contains', () => {
  const trusts = fc.constantFrom<TrustProxy>(true, 3, ['10.0.0.0/8', '::/0']);
  fc.assert(
    fc.property(trusts, fc.string(), fc.string(), (trust, from, forwarded) => {
      client(trust, from, forwarded);
    }),
  );
});

test.each([
  [-1, 'trustProxy'],
  [1.5, 'trustProxy'],
  ['10.0.0.0/8', 'trustProxy'],
  [['10.0.0.1', 'somewhere'], 'trustProxy[1]'],
  [['10.0.0.1/99'], 'trustProxy[0]'],
  [[7], 'trustProxy[0]'],
])('readTrustProxy: refuses %j', (trustProxy, field) => {
  expect(() => readTrustProxy(new OptionReader('', { trustProxy }))).toThrow(
    expect.objectContaining({ code: 'CONFIG', field }),
  );
});
