/** The sockets of one UDP transport: what comes in, what goes out, and what went wrong. */

import { createSocket, type RemoteInfo, type Socket } from 'node:dgram';
import {
  type Address,
  formatHostPort,
  isLoopbackHost,
  isMulticast,
  parseHostPort,
} from './address.ts';
import {
  type DatagramHandler,
  MAX_SEND_QUEUE_BYTES,
  type Transport,
  zeroCounts,
} from './transport.ts';

/** Bytes that may wait to be read: a fleet may speak all at once. */
const RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024;

export class UdpSockets {
  readonly #name: string;
  readonly #isLoopback: boolean;
  readonly #family: 4 | 6;
  readonly #sockets: Socket[] = [];
  readonly #counts = zeroCounts();
  #sendSocket: Socket | undefined;
  #localAddress: Address | undefined;
  #onDatagram: DatagramHandler | undefined;
  /** How often it was closed: whoever opens it sees whether that happened meanwhile. */
  #closeCount = 0;

  constructor(name: string, isLoopback: boolean, family: 4 | 6) {
    this.#name = name;
    this.#isLoopback = isLoopback;
    this.#family = family;
  }

  get isOpen(): boolean {
    return this.#onDatagram !== undefined;
  }

  /** What is the same for groups and lists. */
  transportBase(): Pick<Transport, 'name' | 'isLoopback' | 'counts' | 'send' | 'close'> {
    return {
      name: this.#name,
      isLoopback: this.#isLoopback,
      counts: this.#counts,
      send: (to, bytes) => {
        const address = parseHostPort(to);
        if (address) this.send(address, bytes);
        else this.#counts.failed++;
      },
      close: () => this.close(),
    };
  }

  async open(onDatagram: DatagramHandler, sockets: () => Promise<Socket>): Promise<void> {
    const closeCount = this.#closeCount;
    try {
      const sendSocket = await sockets();
      if (closeCount !== this.#closeCount) throw new Error('it was closed before it was open');
      this.#sendSocket = sendSocket;
    } catch (error) {
      await this.close();
      throw error;
    }
    const { address, port } = this.#sendSocket.address();
    this.#localAddress = { host: address, port };
    this.#onDatagram = onDatagram;
  }

  /** One that hears at an address. */
  async bindSocket({ host, port }: Address): Promise<Socket> {
    const socket = createSocket({
      type: this.#family === 6 ? 'udp6' : 'udp4',
      reuseAddr: isMulticast(host),
      // Only addresses come here; looking them up would cost a turn of the loop for each datagram.
      lookup: (own, _options, tell) => tell(null, own, this.#family),
    });
    socket.unref(); // to hear what others do is no reason for a process to go on
    this.#sockets.push(socket);
    socket.on('message', (bytes, from) => this.#receive(bytes, from));
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

  #receive(bytes: Uint8Array, { address, port }: RemoteInfo): void {
    // Nobody else should be able to get here; should the system see that otherwise, it ends here.
    if (this.#isLoopback && !isLoopbackHost(address)) return;
    if (!this.#onDatagram) return;
    this.#counts.received++;
    this.#onDatagram(bytes, formatHostPort({ host: address, port }));
  }

  send({ host, port }: Address, bytes: Uint8Array): void {
    const sendSocket = this.#sendSocket;
    if (!sendSocket) return;
    if (this.#isLoopback && !isLoopbackHost(host) && !isMulticast(host)) return;
    const counts = this.#counts;
    try {
      if (sendSocket.getSendQueueSize() > MAX_SEND_QUEUE_BYTES) {
        counts.dropped++;
        return;
      }
      sendSocket.send(bytes, port, host, (error) => {
        if (error) counts.failed++;
        else counts.sent++;
      });
    } catch {
      counts.failed++;
    }
  }

  isSelf({ host, port }: Address): boolean {
    return this.#localAddress?.host === host && this.#localAddress.port === port;
  }

  async close(): Promise<void> {
    this.#closeCount++;
    this.#onDatagram = undefined;
    this.#sendSocket = undefined;
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
