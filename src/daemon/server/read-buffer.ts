/**
 * Reads a connection into one buffer of ours, again and again, instead of a new one for every chunk.
 *
 * Node can do so for connections that are made (`onread` of a socket), but not for those that are taken:
 * there it gets 64 KiB of memory for every read, which is a sixth of all that an unpipelined question
 * costs. So the connection below the socket is given to a second socket that has `onread`. Where this Node
 * does not show what is needed for that, or there is more below (TLS), chunks come as usual.
 */

import { Socket, type SocketConstructorOpts } from 'node:net';

/** Bytes of one read at most. */
const CHUNK_BYTES = 65_536;

/** One for all: what is in it has been heard before the next read. */
const readBuffer = Buffer.allocUnsafeSlow(CHUNK_BYTES);

/** What is below a socket, as far as it is needed. */
interface SocketHandle {
  reading: boolean;
  readStop(): number;
  useUserBuffer(buffer: Uint8Array): void;
}

interface SocketWithHandle {
  _handle?: Partial<SocketHandle> | null;
}

/**
 * The socket to go on with, whose chunks go to `hear`. A chunk is good until `hear` returns: whoever
 * needs a part of it later copies that. If it returns false, the next one comes when the socket is read.
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
  const next = new Socket({ ...options, onread } as unknown as SocketConstructorOpts);
  next.resume();
  return next;
}

/** Whether chunks of this one would come in our buffer. */
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
