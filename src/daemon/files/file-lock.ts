/**
 * A lock on a state file, so that two daemons do not write the same one: a Unix socket `<file>.lock` that its owner listens on.
 *
 *     socket accepts a connection ──▶ its owner runs: the file is in use
 *     socket refuses              ──▶ its owner is gone, also by kill -9 or a power loss: the socket is replaced
 *
 * The kernel knows whether the owner lives. So no process id can be mistaken for another one, and containers that share a
 * volume on one host see each other. Two hosts that share a network file system do not.
 */

import { chmod, lstat, unlink } from 'node:fs/promises';
import { connect, createServer, type Server } from 'node:net';
import type { Clock, Millis } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { errorMessageOf } from '../../core/errors.ts';

/** The lock, its owner, or why there can be none here. */
export type LockResult =
  | { readonly release: () => Promise<void> }
  | { readonly owner: string }
  | { readonly problem: string };

/** A stale socket is replaced once; a second one is of a daemon that started at the same time. */
const MAX_ATTEMPTS = 3;

/** How long an owner may take to say its process id: a frozen one is an owner too. */
const OWNER_DEADLINE_MS: Millis = 500;

const MAX_OWNER_CHARS = 20;

/** Longer paths of sockets are cut by some systems, without an error. */
const MAX_PATH_BYTES = 100;

export const lockPathOf = (file: string): string => `${file}.lock`;

export async function lockFile(file: string, clock: Clock): Promise<LockResult> {
  const path = lockPathOf(file);
  if (Buffer.byteLength(path) > MAX_PATH_BYTES)
    return { problem: `its path has more than ${MAX_PATH_BYTES} bytes` };
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    try {
      const server = await listen(path);
      return { release: () => new Promise((resolve) => server.close(() => resolve())) };
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE')
        return { problem: errorMessageOf(error) };
    }
    const owner = await ownerOf(path, clock);
    if (typeof owner !== 'string') return owner;
    if (owner !== '') return { owner };
  }
  return { owner: 'a daemon that starts at the same time' };
}

/** Sends its process id to each connection. It keeps no process alive. */
async function listen(path: string): Promise<Server> {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.end(`${process.pid}\n`);
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, resolve);
  });
  server.on('error', () => {});
  server.unref();
  await chmod(path, 0o600);
  return server;
}

/** The owner of a socket; an empty string if it is gone, and its socket removed. */
async function ownerOf(path: string, clock: Clock): Promise<string | { readonly problem: string }> {
  const socket = connect(path);
  let said = '';
  const done = new Promise<NodeJS.ErrnoException | undefined>((resolve) => {
    socket.on('data', (data) => {
      said = (said + data.toString('latin1')).slice(0, MAX_OWNER_CHARS);
    });
    socket.on('error', resolve);
    socket.on('close', () => resolve(undefined));
  });
  const isDone = await completesWithin(clock, OWNER_DEADLINE_MS, done, true);
  socket.destroy();
  const error = isDone ? await done : undefined;
  if (!error) return `process ${/^\d+/.exec(said)?.[0] ?? 'unknown'}`;
  if (error.code !== 'ECONNREFUSED' && error.code !== 'ENOENT')
    return { problem: errorMessageOf(error) };
  const found = await lstat(path).catch(() => undefined);
  if (!found) return ''; // its owner has just stopped
  if (!found.isSocket()) return { problem: `${path} is not a socket` };
  try {
    await unlink(path);
  } catch (problem) {
    if ((problem as NodeJS.ErrnoException).code !== 'ENOENT')
      return { problem: errorMessageOf(problem) };
  }
  return '';
}
