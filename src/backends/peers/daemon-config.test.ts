import { expect, test } from 'vitest';
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
