/** Free ports on loopback. */

import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';

export async function freePort() {
  const server = createServer();
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address();
  await new Promise((closed) => server.close(closed));
  return port;
}

/** Several different free UDP ports. */
export async function freeUdpPorts(count) {
  const sockets = await Promise.all(
    Array.from({ length: count }, async () => {
      const socket = createSocket('udp4');
      await new Promise((ready) => socket.bind(0, '127.0.0.1', ready));
      return socket;
    }),
  );
  const ports = sockets.map((socket) => socket.address().port);
  await Promise.all(sockets.map((socket) => new Promise((end) => socket.close(end))));
  return ports;
}
