import { expect, test } from 'vitest';
import { endpointOf, parseEndpoint } from './address.ts';

test.each([
  ['10.0.0.2:7000', { host: '10.0.0.2', port: 7000 }],
  ['[::1]', { host: '::1', port: 7611 }],
  ['sluice.internal', { host: 'sluice.internal', port: 7611 }],
  ['7000', { host: '127.0.0.1', port: 7000 }],
  [':7000', { host: '127.0.0.1', port: 7000 }],
  ['./sluice.sock', { path: './sluice.sock' }],
])('endpointOf: accepts %s', (at, endpoint) => {
  expect(endpointOf(at)).toEqual(endpoint);
});

test.each([
  ['0', /`--at` to be a port from 1 to 65535, got 0/],
  ['70000', /`--at` to be a port from 1 to 65535, got 70000/],
  ['123456789', /`--at` to be an address such as "127.0.0.1:7612" or .*, got "123456789"/],
  ['a b', /`--at` to be an address/],
  ['', /`--at` to be an address/],
])('parseEndpoint: refuses "%s"', (at, message) => {
  expect(() => parseEndpoint(at, '--at', 7612)).toThrow(message);
});
