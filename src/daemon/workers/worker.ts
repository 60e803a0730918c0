/**
 * A worker process: reads and writes the sockets of clients, and relays their bytes to the daemon. It decides nothing and
 * keeps no state, so a crash loses its connections only.
 *
 * The daemon starts it with two channels: Node's own, on which accepted sockets arrive, and a socket pair for frames. It
 * ends when the second one does.
 */

import { Socket } from 'node:net';
import { type Millis, schedule, systemClock } from '../../core/clock.ts';
import { KEEP_ALIVE_MS } from '../server/idle-timer.ts';
import { reuseReadBuffer } from '../server/read-buffer.ts';
import { Frame, FrameChannel } from './frame-channel.ts';
import { sendWarnings } from './worker-warnings.ts';

/** The file descriptor of the socket pair. */
const CHANNEL_FD = 4;

/** How long a client may take to read its last responses once the daemon has closed the connection. */
const LINGER_MS: Millis = 10_000;

/** How long it may take to read them once the daemon has ended. */
const EXIT_MS: Millis = 1_000;

interface Connection {
  readonly socket: Socket;
  /** True while the daemon wants no bytes. */
  isPaused: boolean;
  /** True once the client has been reported as not reading. */
  isBlocked: boolean;
}

const connections = new Map<number, Connection>();

/** Connections that are not read because the daemon does not keep up. */
const waiting = new Set<Connection>();

const channel = new FrameChannel(new Socket({ fd: CHANNEL_FD }), {
  onFrame(type, id, payload) {
    if (type === Frame.PING) return channel.send(Frame.PING, 0);
    const connection = connections.get(id);
    if (connection) handle(connection, id, type, payload);
  },
  onDrain() {
    for (const connection of waiting) if (!connection.isPaused) connection.socket.resume();
    waiting.clear();
  },
  onEnd: exitWhenSent,
});

function handle(connection: Connection, id: number, type: number, payload: Buffer): void {
  const { socket } = connection;
  if (type === Frame.DATA) {
    if (socket.write(Buffer.from(payload)) || connection.isBlocked) return;
    connection.isBlocked = true;
    channel.send(Frame.PAUSE, id);
  } else if (type === Frame.END) socket.end();
  else if (type === Frame.PAUSE) {
    connection.isPaused = true;
    socket.pause();
  } else if (type === Frame.RESUME) {
    connection.isPaused = false;
    if (!waiting.has(connection)) socket.resume();
  } else if (type === Frame.CLOSE) {
    connections.delete(id);
    waiting.delete(connection);
    close(socket);
  }
}

/** Discards what the client has not read, unless the daemon had sent everything. */
function close(socket: Socket): void {
  if (!socket.writableEnded) return void socket.destroy();
  socket.destroySoon();
  const cancel = schedule(
    systemClock,
    systemClock.now() + LINGER_MS,
    () => socket.destroy(),
    false,
  );
  socket.once('close', cancel);
}

function open(id: number, accepted: Socket): void {
  const socket = reuseReadBuffer(accepted, (chunk) => {
    if (!connections.has(id)) return;
    channel.send(Frame.DATA, id, chunk);
    if (!channel.isBlocked) return;
    waiting.add(connection);
    socket.pause();
  });
  const connection = { socket, isPaused: false, isBlocked: false };
  connections.set(id, connection);
  channel.send(Frame.OPEN, id);
  socket.setKeepAlive(true, KEEP_ALIVE_MS);
  socket.on('drain', () => {
    connection.isBlocked = false;
    channel.send(Frame.RESUME, id);
  });
  socket.on('end', () => channel.send(Frame.END, id));
  socket.on('error', () => socket.destroy()); // the client closed the connection
  socket.on('close', () => {
    waiting.delete(connection);
    if (connections.delete(id)) channel.send(Frame.CLOSE, id);
  });
  socket.resume();
}

/** The daemon has answered everything, or is gone. */
function exitWhenSent(): void {
  for (const { socket } of connections.values()) socket.destroySoon();
  schedule(systemClock, systemClock.now() + EXIT_MS, () => process.exit(), false);
  if (process.connected) process.disconnect();
}

process.on('message', ({ id }: { readonly id: number }, accepted: Socket | undefined) => {
  if (accepted) open(id, accepted);
  else channel.send(Frame.CLOSE, id); // the client left on the way here
});

/** A terminal or a service manager sends signals to the whole group: the daemon acts on them, and ends its workers. */
for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, () => {});

sendWarnings(process, (message) => process.connected && process.send?.(message));
process.title = 'sluice worker';
channel.send(Frame.PING, 0);
