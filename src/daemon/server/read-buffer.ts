/**
 * Reads connections into one shared buffer instead of a new one per chunk.
 *
 * Node offers this for outgoing sockets (`onread`) but not for accepted ones. There each read allocates 64 KiB, a sixth
 * of the cost of an unpipelined request. So the handle below an accepted socket is moved to a second socket that has
 * `onread`. The handle is a private field of Node's sockets. Where Node lacks it, or the socket is not plain TCP or
 * Unix (TLS), chunks come through ordinary 'data' events.
 */

import { Socket, type SocketConstructorOpts } from 'node:net';

/** Bytes of one read at most. */
export const CHUNK_BYTES = 65_536;

/** Shared by all connections: a chunk is processed before the next read. */
const readBuffer = Buffer.allocUnsafeSlow(CHUNK_BYTES);

/** The members of Node's private handle that are used here. */
interface SocketHandle {
  reading: boolean;
  readStop(): number;
  useUserBuffer(buffer: Uint8Array): void;
}

interface SocketWithHandle {
  _handle?: Partial<SocketHandle> | null;
}

/** A copy with memory of its own: a part of Node's pool would keep all 8 KiB of it. */
export function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}

/**
 * Returns the socket that replaces the accepted one; its chunks go to `onChunk`. A chunk is valid until
 * `onChunk` returns: copy what is needed later. If it returns false, reading stops until the socket is read.
 */
export function reuseReadBuffer(socket: Socket, onChunk: (chunk: Buffer) => unknown): Socket {
  const handle = (socket as unknown as SocketWithHandle)._handle;
  if (!canTakeHandle(socket, handle)) {
    socket.on('data', onChunk);
    return socket;
  }
  handle.readStop();
  handle.reading = false;
  (socket as unknown as SocketWithHandle)._handle = null;
  socket.destroy();
  const callback = (length: number): boolean => {
    return onChunk(length === CHUNK_BYTES ? readBuffer : readBuffer.subarray(0, length)) !== false;
  };
  const options = { handle, allowHalfOpen: true, readable: true, writable: true };
  const onread = { buffer: readBuffer, callback };
  const replacement = new Socket({ ...options, onread } as unknown as SocketConstructorOpts);
  replacement.resume();
  return replacement;
}

/** True if this socket can be read into the shared buffer. */
export const canReuseReadBuffer = (socket: Socket): boolean =>
  canTakeHandle(socket, (socket as unknown as SocketWithHandle)._handle);

const canTakeHandle = (
  socket: Socket,
  handle: Partial<SocketHandle> | null | undefined,
): handle is SocketHandle =>
  socket.constructor === Socket &&
  typeof handle?.readStop === 'function' &&
  typeof handle.useUserBuffer === 'function' &&
  typeof handle.reading === 'boolean';
