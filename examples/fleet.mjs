/**
 * Peers: three nodes share one limit by gossip over UDP on loopback, without a central server.
 *
 * The limit is a burst of 10. A client spreads 30 calls over three nodes, and about 10 are allowed.
 */

import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { limiter } from 'sluice';
import { peers, udp } from 'sluice/peers';

/** Three free UDP ports: held until all are chosen, so that they differ. */
const sockets = [1, 2, 3].map(() => createSocket('udp4').bind(0, '127.0.0.1'));
await Promise.all(sockets.map((socket) => once(socket, 'listening')));
const addresses = sockets.map((socket) => `127.0.0.1:${socket.address().port}`);
await Promise.all(sockets.map((socket) => new Promise((closed) => socket.close(closed))));

const nodes = addresses.map((bind, n) => {
  const fleet = peers({
    transport: udp({ peers: addresses, bind }),
    key: 'shared-secret-of-the-fleet',
    name: `node ${n + 1}`,
  });
  const api = limiter({
    name: 'api',
    limit: { bucket: { rate: '1/m', burst: 10 } },
    backend: fleet,
  });
  return { fleet, api };
});

const until = async (holds) => {
  for (let n = 0; n < 500 && !holds(); n++) await new Promise((later) => setTimeout(later, 10));
};
await until(() => nodes.every(({ fleet }) => fleet.view().peers.length === 2));
console.log(`${nodes.length} nodes have joined`);

let served = 0;
for (let call = 0; call < 30; call++) {
  if (nodes[call % 3].api.check('alice').verdict === 'allow') served++;
  await new Promise((later) => setTimeout(later, 5)); // time for the report to the peers
}
console.log(`30 calls over three nodes: ${served} served`);
for (const { fleet, api } of nodes) {
  console.log(`${fleet.view().name}: ${api.inspect('alice').remaining} left`);
}
await Promise.all(nodes.map(({ fleet }) => fleet.close()));

if (served < 10 || served > 13) process.exitCode = 1;
