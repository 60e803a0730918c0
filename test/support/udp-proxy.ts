/**
 * Two UDP sockets between two daemons, each in place of one of them: datagrams can be lost on the way.
 *
 *     first ──▶ socket in place of second │ socket in place of first ◀── second
 */

import { createSocket, type Socket } from 'node:dgram';

export interface UdpProxy {
  /** The port that the first daemon has for the second, and the second for the first. */
  readonly ports: readonly [number, number];
  /** Of so many datagrams one arrives; 1: all. */
  passEvery: number;
  stop(): Promise<void>;
}

const bound = (): Promise<Socket> =>
  new Promise((resolve, reject) => {
    const socket = createSocket('udp4').once('error', reject);
    socket.bind(0, '127.0.0.1', () => resolve(socket));
  });

/** Between the daemons that listen on these ports. */
export async function startUdpProxy(first: number, second: number): Promise<UdpProxy> {
  const [asSecond, asFirst] = await Promise.all([bound(), bound()]);
  let datagrams = 0;
  const proxy = {
    ports: [asSecond.address().port, asFirst.address().port] as const,
    passEvery: 1,
    stop: async (): Promise<void> => {
      asSecond.close();
      asFirst.close();
    },
  };
  const relay = (from: Socket, to: Socket, port: number): unknown =>
    from.on('message', (bytes) => {
      if (++datagrams % proxy.passEvery === 0) to.send(bytes, port, '127.0.0.1', () => {});
    });
  relay(asSecond, asFirst, second);
  relay(asFirst, asSecond, first);
  return proxy;
}
