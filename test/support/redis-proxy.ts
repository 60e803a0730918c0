/** A TCP proxy in front of a test Redis: delays both directions, cuts all connections, or loses replies. */

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface RedisProxy {
  readonly port: number;
  /** Ends all connections, and refuses new ones until `restore`. */
  cut(): void;
  /** Requests reach Redis, and its replies are lost, until `restore`. */
  loseReplies(): void;
  restore(): void;
  /** New connections reach the server at this port; all others end. */
  retarget(port: number): void;
  stop(): void;
}

/** @param delayMs in each direction. */
export async function startProxy(target: number, delayMs = 0): Promise<RedisProxy> {
  const sockets = new Set<Socket>();
  let port = target;
  let mode: 'open' | 'cut' | 'mute' = 'open';
  const endAll = (): void => {
    for (const socket of sockets) socket.destroy();
    sockets.clear();
  };
  const forward = (from: Socket, to: Socket, isReply: boolean): void => {
    sockets.add(from);
    from.setNoDelay(true).on('data', (bytes) => {
      if (isReply && mode === 'mute') return;
      if (delayMs > 0) setTimeout(() => to.write(bytes), delayMs);
      else to.write(bytes);
    });
    from.on('close', () => to.destroy()).on('error', () => to.destroy());
  };
  const server = createServer((near) => {
    if (mode === 'cut') return near.destroy();
    const far = connect(port, '127.0.0.1');
    forward(near, far, false);
    forward(far, near, true);
    return near;
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    port: (server.address() as AddressInfo).port,
    cut() {
      mode = 'cut';
      endAll();
    },
    loseReplies() {
      mode = 'mute';
    },
    restore() {
      if (mode === 'mute') endAll(); // a connection that lost replies is out of step
      mode = 'open';
    },
    retarget(next) {
      port = next;
      endAll();
    },
    stop() {
      server.close();
      endAll();
    },
  };
}
