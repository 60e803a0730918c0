/** Two nodes gossip over UDP: what one served, the other counts. */

import { createSocket } from 'node:dgram';
import { limiter } from 'sluice';
import { peers, udp } from 'sluice/peers';

const freePort = () =>
  new Promise((found) => {
    const socket = createSocket('udp4');
    socket.bind(0, '127.0.0.1', () => {
      const { port } = socket.address();
      socket.close(() => found(port));
    });
  });

const limit = { bucket: { rate: '1/h', burst: 10 } };
const [a, b] = [await freePort(), await freePort()];
const join = (own, other) =>
  peers({ transport: udp({ bind: `127.0.0.1:${own}`, peers: [`127.0.0.1:${other}`] }) });
const [one, two] = [join(a, b), join(b, a)];
const [first, second] = [one, two].map((backend) => limiter({ name: 'api', limit, backend }));
await Promise.all([one.opened, two.opened]);

const deadline = performance.now() + 20_000;
const until = async (isReached) => {
  while (!isReached() && performance.now() < deadline) await new Promise((r) => setTimeout(r, 20));
};
await until(() => [one, two].every((fleet) => fleet.view().peers.length === 1));

for (let call = 0; call < 8; call++) first.check('alice');
const remaining = () => second.inspect('alice').remaining;
await until(() => remaining() < 2.5);

console.log(JSON.stringify({ remaining: Math.floor(remaining()) }));
await Promise.all([one.close(), two.close()]);
