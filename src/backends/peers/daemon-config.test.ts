import { expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import { readPeersConfig } from './daemon-config.ts';

test.each([
  ['239.0.0.1:7613', { group: '239.0.0.1:7613' }],
  [['239.0.0.1:7613'], { group: '239.0.0.1:7613' }],
  ['10.0.0.1:7613', { peers: '10.0.0.1:7613' }],
  [['10.0.0.1:7613', '10.0.0.2:7613'], { peers: ['10.0.0.1:7613', '10.0.0.2:7613'] }],
  [
    { group: '239.0.0.1:7613', ttl: 4 },
    { group: '239.0.0.1:7613', ttl: 4 },
  ],
])('peers configuration: reads udp %j', (udp, options) => {
  expect(readPeersConfig({ udp, key: 'a secret of us all' }, 'peers').transport).toEqual({
    kind: 'udp',
    options,
  });
});

test('peers configuration: an invalid key is the only error, also beside a seed', () => {
  const read = () =>
    readPeersConfig({ udp: '10.0.0.1:7613', key: 'short', seed: 'the seed of the fleet' }, 'peers');
  const error = errorOf(read);
  expect(error.field).toBe('peers.key');
  expect(error.additionalErrors).toEqual([]);
});

function errorOf(run: () => unknown): ConfigError {
  try {
    run();
  } catch (error) {
    if (error instanceof ConfigError) return error;
  }
  throw new Error('expected a ConfigError');
}
