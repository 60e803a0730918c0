/**
 * Peers: three nodes share one limit by gossip over UDP on loopback, without a central server.
 *
 * The limit is a burst of 10. A client spreads 30 calls over three nodes, and about 10 are allowed.
 */

import { createSocket } from 'node:dgram';
import { limiter } from 'sluice';
import { peers, udp } from 'sluice/peers';

/** A free UDP port. */
const freePort = () =>
  new Promise((resolve) => {
    const socket = createSocket('udp4');
    socket.bind(0, '127.0.0.1', () => {
      const { port } = socket.address();
      socket.close(() => resolve(port));
    });
  });

const addresses = await Promise.all([1, 2, 3].map(async () => `127.0.0.1:${await freePort()}`));
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
