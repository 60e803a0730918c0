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

/** The system's receive buffer, for the case that all nodes send at the same time. */
const RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024;

/** The differences between a multicast group and a list of peers. */
interface UdpPlan {
  readonly name: string;
  readonly isLoopback: boolean;
  readonly family: 4 | 6;
  /** Binds all sockets; resolves to the sending one. */
  bind(bindSocket: (address: Address) => Promise<Socket>): Promise<Socket>;
  /** Destinations of a broadcast. */
  targets(): readonly Address[];
  onOpen?(): Promise<void>;
  onClose?(): void;
}

interface UdpTransport extends Transport {
  isOpen(): boolean;
  isSelf(address: Address): boolean;
}

export function udpTransport(plan: UdpPlan): UdpTransport {
  const { name, isLoopback, family } = plan;
  const sockets: Socket[] = [];
  const counts = zeroCounts();
  let sendSocket: Socket | undefined;
  let localAddress: Address | undefined;
  let onDatagram: DatagramHandler | undefined;
  /** Lets `open` detect a `close` that happened meanwhile. */
  let closeCount = 0;
  /** Counted here, because not every runtime reports the size of a socket's queue. */
  let queuedBytes = 0;

  const receive = (bytes: Uint8Array, { address, port }: RemoteInfo): void => {
    // Loopback sockets get no remote datagrams; this check also rejects one that the system delivers.
    if (isLoopback && !isLoopbackHost(address)) return;
    if (!onDatagram) return;
    counts.received++;
    onDatagram(bytes, formatHostPort({ host: address, port }));
  };

  const bindSocket = async ({ host, port }: Address): Promise<Socket> => {
    const socket = createSocket({
      type: family === 6 ? 'udp6' : 'udp4',
      reuseAddr: isMulticast(host),
      // Destinations are IP addresses; the default lookup would cost an event-loop turn per datagram.
      lookup: (host, _options, done) => done(null, host, family),
    });
    socket.unref(); // a listening socket alone does not keep the process alive
    sockets.push(socket);
    socket.on('message', receive);
    await new Promise<void>((ready, fail) => {
      socket.once('error', fail);
      socket.bind({ address: host, port }, () => {
        socket.off('error', fail);
        socket.on('error', () => counts.failed++);
        ready();
      });
    });
    try {
      socket.setRecvBufferSize(RECEIVE_BUFFER_BYTES);
    } catch {
      // The system's default size stays.
    }
    return socket;
  };

  const send = ({ host, port }: Address, bytes: Uint8Array): void => {
    if (!sendSocket) return;
    if (isLoopback && !isLoopbackHost(host) && !isMulticast(host)) return;
    try {
      if (queuedBytes > MAX_SEND_QUEUE_BYTES) {
        counts.dropped++;
        return;
      }
      sendSocket.send(bytes, port, host, (error) => {
        queuedBytes = Math.max(0, queuedBytes - bytes.length);
        if (error) counts.failed++;
        else counts.sent++;
      });
      queuedBytes += bytes.length;
    } catch {
      counts.failed++;
    }
  };

  const close = async (): Promise<void> => {
    closeCount++;
    plan.onClose?.();
    onDatagram = undefined;
    sendSocket = undefined;
    queuedBytes = 0; // a closed socket may not call back
    const closing = sockets.splice(0).map((socket) => {
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
  };

  return {
    name,
    isLoopback,
    counts,
    isOpen: () => onDatagram !== undefined,
    isSelf: ({ host, port }) => localAddress?.host === host && localAddress.port === port,
    async open(handler) {
      const closeCountBefore = closeCount;
      try {
        const bound = await plan.bind(bindSocket);
        if (closeCountBefore !== closeCount) throw new Error(CLOSED_BEFORE_OPEN);
        sendSocket = bound;
      } catch (error) {
        await close();
        throw error;
      }
      const { address, port } = sendSocket.address();
      localAddress = { host: address, port };
      onDatagram = handler;
      await plan.onOpen?.();
    },
    broadcast(bytes) {
      for (const target of plan.targets()) send(target, bytes);
    },
    send(to, bytes) {
      const address = parseHostPort(to);
      if (address) send(address, bytes);
      else counts.failed++;
    },
    close,
  };
}
