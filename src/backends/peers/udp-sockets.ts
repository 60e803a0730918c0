/** The sockets of a UDP transport: binding, sending, receiving and counting. */

import { createSocket, type RemoteInfo, type Socket } from 'node:dgram';
import {
  type Address,
  formatHostPort,
  isLoopbackHost,
  isMulticast,
  parseHostPort,
} from './address.ts';
import {
  CLOSED_BEFORE_OPEN,
  type DatagramHandler,
  MAX_SEND_QUEUE_BYTES,
  type Transport,
  zeroCounts,
} from './transport.ts';

/** Receive buffer of the system: all nodes may send at the same time. */
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
  /** Lets `open` detect a `close` that happened meanwhile. */
  #closeCount = 0;

  constructor(name: string, isLoopback: boolean, family: 4 | 6) {
    this.#name = name;
    this.#isLoopback = isLoopback;
    this.#family = family;
  }

  get isOpen(): boolean {
    return this.#onDatagram !== undefined;
  }

  /** The part of the transport that multicast and unicast share. */
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
      if (closeCount !== this.#closeCount) throw new Error(CLOSED_BEFORE_OPEN);
      this.#sendSocket = sendSocket;
    } catch (error) {
      await this.close();
      throw error;
    }
    const { address, port } = this.#sendSocket.address();
    this.#localAddress = { host: address, port };
    this.#onDatagram = onDatagram;
  }

  /** Binds a socket that receives at an address. */
  async bindSocket({ host, port }: Address): Promise<Socket> {
    const socket = createSocket({
      type: this.#family === 6 ? 'udp6' : 'udp4',
      reuseAddr: isMulticast(host),
      // Destinations are IP addresses; the default lookup would cost an event-loop turn per datagram.
      lookup: (host, _options, done) => done(null, host, this.#family),
    });
    socket.unref(); // listening alone does not keep the process alive
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
      // keep the system's default size
    }
    return socket;
  }

  #receive(bytes: Uint8Array, { address, port }: RemoteInfo): void {
    // Loopback sockets get no remote datagrams; this check also holds if the system delivers one.
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
          closed(); // a socket that failed to bind
        }
      });
    });
    await Promise.all(closing);
  }
}
