import { expect, test } from 'vitest';
import { natsConnectOptions } from './nats-connection.ts';

test.each([
  [['nats://10.0.0.9:4222'], { servers: ['nats://10.0.0.9:4222'] }],
  [['10.0.0.9'], { servers: ['10.0.0.9'] }],
  [
    ['nats://me:p%40ss@a:1', 'tls://b'],
    { servers: ['nats://a:1', 'tls://b'], user: 'me', pass: 'p@ss' },
  ],
  [['b', 'me:a:b/c@d@a'], { servers: ['b', 'a'], user: 'me', pass: 'a:b/c@d' }],
  [['nats://50%token@a'], { servers: ['nats://a'], token: '50%token' }],
])('nats connection: takes credentials out of the address %j', (servers, options) => {
  expect(natsConnectOptions(servers)).toEqual(options);
});
