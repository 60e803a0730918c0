/** A TCP proxy in front of a server that can lose a reply: the server has executed the command, the client cannot know. */

import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';

export interface LossyProxy {
  readonly port: number;
  /** The connection is cut when the server replies to the next request that contains `text`. */
  loseReplyTo(text: string): void;
  /** How many requests that contain `text` were forwarded. */
  countOf(text: string): number;
  stop(): Promise<void>;
}

export async function startLossyProxy(serverPort: number): Promise<LossyProxy> {
  const sockets = new Set<Socket>();
  const requests: string[] = [];
  let lostText: string | undefined;
  const server = createServer((client) => {
    const upstream = connect(serverPort, '127.0.0.1');
    let isLosing = false;
    const cut = (): void => {
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        cut();
      });
    }
    client.on('data', (bytes) => {
      const text = bytes.toString('latin1');
      requests.push(text);
      if (lostText !== undefined && text.includes(lostText)) {
        lostText = undefined;
        isLosing = true;
      }
      upstream.write(bytes);
    });
    upstream.on('data', (bytes) => {
      if (isLosing) cut();
      else client.write(bytes);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    loseReplyTo(text) {
      lostText = text;
    },
    countOf: (text) => requests.filter((request) => request.includes(text)).length,
    async stop() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
