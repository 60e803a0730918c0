/**
 * A TCP proxy on loopback that injects network faults between workers and a server.
 *
 *     pass()          forwards bytes; bytes that were held back arrive now
 *     delay(ms)       forwards each chunk so much later, in both directions
 *     freeze()        holds bytes back in both directions, as a black hole with retransmission does
 *     loseReplies()   forwards requests and drops replies; resolves when a reply was dropped
 *     cut()           ends all connections, and refuses new ones until pass()
 */

import { once } from 'node:events';
import { connect, createServer } from 'node:net';

/** How long `loseReplies` waits for a reply to drop. */
const LOST_WITHIN_MS = 5000;

export async function startProxy(targetPort) {
  const sockets = new Set();
  let mode = 'pass';
  let delayMs = 0;
  let onLost = () => {};

  const forward = (from, to, isReply) => {
    sockets.add(from);
    from.setNoDelay(true);
    if (mode === 'frozen') from.pause();
    from.on('data', (bytes) => {
      if (isReply && mode === 'losing') return onLost();
      if (delayMs > 0) setTimeout(() => to.write(bytes), delayMs);
      else to.write(bytes);
    });
    from.on('error', () => {});
    from.on('close', () => {
      sockets.delete(from);
      to.destroy();
    });
  };

  const server = createServer((near) => {
    if (mode === 'cut') return near.destroy();
    const far = connect(targetPort, '127.0.0.1');
    forward(near, far, false);
    forward(far, near, true);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');

  const endAll = () => {
    for (const socket of sockets) socket.destroy();
  };
  return {
    port: server.address().port,
    pass() {
      mode = 'pass';
      for (const socket of sockets) socket.resume();
    },
    delay(ms) {
      delayMs = ms;
    },
    freeze() {
      mode = 'frozen';
      for (const socket of sockets) socket.pause();
    },
    loseReplies() {
      mode = 'losing';
      return new Promise((resolve, reject) => {
        const late = () => reject(new Error(`no reply to lose within ${LOST_WITHIN_MS} ms`));
        const timer = setTimeout(late, LOST_WITHIN_MS);
        onLost = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    },
    cut() {
      mode = 'cut';
      endAll();
    },
    stop() {
      server.close();
      endAll();
    },
  };
}
