/** A TCP proxy between two regions that delays all data and can be cut. */

import { connect, createServer } from 'node:net';

export class DelayProxy {
  port;
  isCut = false;
  #server;
  #sockets = new Set();

  constructor(to, oneWayMs) {
    this.#server = createServer((client) => {
      const target = connect(to, '127.0.0.1');
      for (const [from, onto] of [
        [client, target],
        [target, client],
      ]) {
        this.#sockets.add(from);
        from.setNoDelay(true);
        from.on('data', (bytes) => {
          const forward = () => !this.isCut && !onto.destroyed && onto.write(bytes);
          setTimeout(forward, oneWayMs);
        });
        from.on('error', () => onto.destroy());
        from.on('close', () => {
          this.#sockets.delete(from);
          onto.destroy();
        });
      }
    });
  }

  async open() {
    await new Promise((done) => this.#server.listen(0, '127.0.0.1', done));
    this.port = this.#server.address().port;
    return this;
  }

  close() {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
  }
}
