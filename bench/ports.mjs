/** Free ports on loopback, picked by the system. Ports of one call differ: all are held until all are chosen. */

import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer } from 'node:net';

/** Free TCP ports. */
export async function freePorts(count) {
  return choose(Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1')));
}

export async function freePort() {
  const [port] = await freePorts(1);
  return port;
}

/** Free UDP ports. */
export async function freeUdpPorts(count) {
  return choose(Array.from({ length: count }, () => createSocket('udp4').bind(0, '127.0.0.1')));
}

async function choose(holders) {
  await Promise.all(holders.map((holder) => once(holder, 'listening')));
  const ports = holders.map((holder) => holder.address().port);
  await Promise.all(holders.map((holder) => new Promise((closed) => holder.close(closed))));
  return ports;
}
