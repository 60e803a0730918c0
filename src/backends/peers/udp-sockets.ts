/** The sockets of one UDP transport: what comes in, what goes out, and what went wrong. */

import { createSocket, type RemoteInfo, type Socket } from 'node:dgram';
import { type Address, addressIn, isLoopbackHost, isMulticast, textOf } from './address.ts';
import { type Hear, noCounts, SENDING_BYTES_MAX, type Transport } from './transport.ts';

/** Bytes that may wait to be read: a fleet may speak all at once. */
const RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024;

export class UdpSockets {
  readonly #name: string;
  readonly #isLoopback: boolean;
  readonly #family: 4 | 6;
  readonly #sockets: Socket[] = [];
  readonly #counts = noCounts();
  #speaker: Socket | undefined;
  #own: Address | undefined;
  #hear: Hear | undefined;
  /** How often it was closed: whoever opens it sees whether that happened meanwhile. */
  #closings = 0;

  constructor(name: string, isLoopback: boolean, family: 4 | 6) {
    this.#name = name;
    this.#isLoopback = isLoopback;
    this.#family = family;
  }

  get isOpen(): boolean {
    return this.#hear !== undefined;
  }

  /** What is the same for groups and lists. */
  common(): Pick<Transport, 'name' | 'isLoopback' | 'counts' | 'send' | 'close'> {
    return {
      name: this.#name,
      isLoopback: this.#isLoopback,
      counts: this.#counts,
      send: (to, bytes) => {
        const address = addressIn(to);
        if (address) this.put(address, bytes);
        else this.#counts.failed++;
      },
      close: () => this.close(),
    };
  }

  async open(hear: Hear, sockets: () => Promise<Socket>): Promise<void> {
    const closings = this.#closings;
    try {
      const speaker = await sockets();
      if (closings !== this.#closings) throw new Error('it was closed before it was open');
      this.#speaker = speaker;
    } catch (error) {
      await this.close();
      throw error;
    }
    const { address, port } = this.#speaker.address();
    this.#own = { host: address, port };
    this.#hear = hear;
  }

  /** One that hears at an address. */
  async socket({ host, port }: Address): Promise<Socket> {
    const socket = createSocket({
      type: this.#family === 6 ? 'udp6' : 'udp4',
      reuseAddr: isMulticast(host),
      // Only addresses come here; looking them up would cost a turn of the loop for each datagram.
      lookup: (own, _options, tell) => tell(null, own, this.#family),
    });
    socket.unref(); // to hear what others do is no reason for a process to go on
    this.#sockets.push(socket);
    socket.on('message', (bytes, from) => this.#arrive(bytes, from));
    await new Promise<void>((ready, fail) => {
      socket.once('error', fail);
      socket.bind({ address: host, port }, () => {
        socket.off('error', fail);
        socket.on('error', () => this.#counts.failed++);
        ready();
      });
    });
    try {
      socket.setRecvBufferSize(RECEIVE_BUFFER_BYTES);
    } catch {
      // then the system's own will have to do
    }
    return socket;
  }

  #arrive(bytes: Uint8Array, { address, port }: RemoteInfo): void {
    // Nobody else should be able to get here; should the system see that otherwise, it ends here.
    if (this.#isLoopback && !isLoopbackHost(address)) return;
    if (!this.#hear) return;
    this.#counts.heard++;
    this.#hear(bytes, textOf({ host: address, port }));
  }

  put({ host, port }: Address, bytes: Uint8Array): void {
    const speaker = this.#speaker;
    if (!speaker) return;
    if (this.#isLoopback && !isLoopbackHost(host) && !isMulticast(host)) return;
    const counts = this.#counts;
    try {
      if (speaker.getSendQueueSize() > SENDING_BYTES_MAX) {
        counts.dropped++;
        return;
      }
      speaker.send(bytes, port, host, (error) => {
        if (error) counts.failed++;
        else counts.sent++;
      });
    } catch {
      counts.failed++;
    }
  }

  isOwn({ host, port }: Address): boolean {
    return this.#own?.host === host && this.#own.port === port;
  }

  async close(): Promise<void> {
    this.#closings++;
    this.#hear = undefined;
    this.#speaker = undefined;
    const closing = this.#sockets.splice(0).map((socket) => {
      socket.removeAllListeners('message');
      return new Promise<void>((closed) => {
        try {
          socket.close(() => closed());
        } catch {
          closed(); // one that could not be bound
        }
      });
    });
    await Promise.all(closing);
  }
}
