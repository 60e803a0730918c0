/** A RESP client on one socket, as a program in any language would be: commands in, replies in order. */

import { connect, type Socket } from 'node:net';
import {
  encodeCommand,
  type RespError,
  RespParser,
  type RespValue,
} from '../../src/client/resp.ts';

export interface RespCaller {
  readonly socket: Socket;
  /** Sends a command; resolves to its reply. Rejects if the connection ends before. */
  call(...args: readonly string[]): Promise<RespValue>;
  close(): void;
}

export async function respCaller(port: number): Promise<RespCaller> {
  const socket = connect(port, '127.0.0.1');
  await new Promise<void>((ready, failed) => socket.once('connect', ready).once('error', failed));
  socket.setNoDelay(true);
  const pending: { resolve(value: RespValue): void; reject(error: Error): void }[] = [];
  const parser = new RespParser();
  socket.on('error', () => {});
  socket.on('data', (chunk) => parser.push(chunk, (reply) => pending.shift()?.resolve(reply)));
  socket.on('close', () => {
    for (const { reject } of pending.splice(0)) reject(new Error('connection closed'));
  });
  return {
    socket,
    call: (...args) =>
      new Promise((resolve, reject) => {
        if (socket.destroyed) return reject(new Error('connection closed'));
        pending.push({ resolve, reject });
        socket.write(encodeCommand(args), 'latin1');
      }),
    close() {
      pending.length = 0; // the test is over
      socket.destroy();
    },
  };
}

/** A reply of SLUICE.CHECK or SLUICE.ACQUIRE by field. */
export function decisionOf(reply: RespValue) {
  if (!Array.isArray(reply)) throw new Error(`not a decision: ${(reply as RespError).message}`);
  const [isAllowed, remaining, retryAfterMs, limit, permit, reason] = reply;
  return { isAllowed: isAllowed === 1, remaining, retryAfterMs, limit, permit, reason };
}
