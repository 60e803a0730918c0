/** A way between two regions that takes its time, and can be cut: whatever is sent through it arrives so much later. */

import { connect, createServer } from 'node:net';

export class Far {
  port;
  isCut = false;
  #server;
  #sockets = new Set();

  constructor(to, oneWayMs) {
    this.#server = createServer((near) => {
      const far = connect(to, '127.0.0.1');
      for (const [from, onto] of [
        [near, far],
        [far, near],
      ]) {
        this.#sockets.add(from);
        from.setNoDelay(true);
        from.on('data', (bytes) => {
          const carry = () => !this.isCut && !onto.destroyed && onto.write(bytes);
          setTimeout(carry, oneWayMs);
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
