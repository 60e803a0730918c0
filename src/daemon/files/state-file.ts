/**
 * Files with state of the daemon: written atomically, read only if no other user can have written them.
 *
 *     temporary file ──▶ fsync ──▶ rename ──▶ fsync of the folder: complete and on disk, or the old file
 *
 * Another user of the host may be able to write in the same directory. No symbolic link is followed, and a file that
 * another user owns or can write is not read.
 */

import { constants } from 'node:fs';
import { type FileHandle, lstat, open, rename, unlink } from 'node:fs/promises';
import { dirname } from 'node:path';
import { errorMessageOf } from '../../core/errors.ts';

/** The hash seed of a snapshot is secret: with it, an attacker can find colliding keys. Controls contain keys. */
const OWNER_ONLY_MODE = 0o600;

/** Replaces a file by what `write` writes. Two at once for the same file would write into the same temporary file. */
export async function writeAtomically<T>(
  file: string,
  write: (handle: FileHandle) => Promise<T>,
): Promise<T> {
  const unfinished = `${file}.${process.pid}.unfinished`;
  const handle = await createFile(unfinished);
  try {
    const result = await write(handle);
    await handle.sync();
    await handle.close();
    await rename(unfinished, file);
    await syncFolderOf(file);
    return result;
  } catch (error) {
    await handle.close().catch(() => undefined);
    await unlink(unfinished).catch(() => undefined);
    throw error;
  }
}

async function createFile(path: string): Promise<FileHandle> {
  await unlink(path).catch(() => undefined); // of a crashed process with this id, or a link
  return open(path, 'wx', OWNER_ONLY_MODE); // fails on a link
}

/** Creates a file beside this one and removes it. @throws what `writeAtomically` would */
export async function tryWriting(file: string): Promise<void> {
  const found = await lstat(file).catch(() => undefined);
  if (found?.isDirectory()) throw new Error('it is a directory');
  const trial = `${file}.${process.pid}.trial`;
  const handle = await createFile(trial);
  await handle.close();
  await unlink(trial);
}

/** Error codes if the system or the file system cannot sync a folder: its renames are as safe as they can be. */
const CANNOT_SYNC = ['EISDIR', 'EPERM', 'EACCES', 'EINVAL', 'ENOTSUP'];

/** Without it, a power loss may undo the rename. */
async function syncFolderOf(file: string): Promise<void> {
  try {
    const folder = await open(dirname(file), 'r');
    await folder.sync().finally(() => folder.close());
  } catch (error) {
    if (!CANNOT_SYNC.includes(String((error as NodeJS.ErrnoException).code))) throw error;
  }
}

/** Opens a file unless it is a link, or a pipe: opening one would wait for a reader. */
const APPEND_FLAGS =
  constants.O_WRONLY | constants.O_APPEND | constants.O_NONBLOCK | constants.O_NOFOLLOW;

/** Error codes if there is no file, or if it is a link, a pipe or a socket. */
const NO_OWN_FILE = ['ENOENT', 'ELOOP', 'ENXIO'];

/**
 * Appends to a file of a known size and syncs it. False if the file is gone or has another size: another process, or a
 * failed write, has changed it.
 */
export async function appendSynced(file: string, size: number, bytes: Buffer): Promise<boolean> {
  const handle = await open(file, APPEND_FLAGS).catch((error: NodeJS.ErrnoException) => {
    if (NO_OWN_FILE.includes(String(error.code))) return undefined;
    throw error;
  });
  if (!handle) return false;
  try {
    if ((await handle.stat()).size !== size) return false;
    await handle.appendFile(bytes);
    await handle.datasync();
    return true;
  } finally {
    await handle.close();
  }
}

/** Opens a file unless it is a link. Non-blocking: opening a pipe would wait for a writer. */
const READ_FLAGS = constants.O_RDONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW;

/** Why a file is not read. */
export interface Unreadable {
  readonly reason: string;
  readonly isMissing?: boolean;
}

/** The bytes of a file, or why it is not read. */
export async function readStateFile(file: string, maxBytes: number): Promise<Buffer | Unreadable> {
  try {
    const read = await readRegularFile(file, maxBytes);
    return typeof read === 'string' ? { reason: read } : read;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ELOOP') return { reason: 'it is a symbolic link' };
    return { reason: errorMessageOf(error), isMissing: code === 'ENOENT' };
  }
}

/** The bytes of a regular file, or the reason why it is not read: a device may have no end. */
async function readRegularFile(file: string, maxBytes: number): Promise<Buffer | string> {
  const handle = await open(file, READ_FLAGS);
  try {
    const found = await handle.stat();
    if (!found.isFile()) return 'it is not a regular file';
    if (!isOwn(found.uid)) return `it belongs to another user (uid ${found.uid})`;
    if (found.mode & constants.S_IWOTH) return 'every user can write it: chmod o-w';
    if (found.size === 0) return 'it is empty'; // files of /proc also have size 0
    if (found.size > maxBytes) return `it has more than ${maxBytes} bytes`;
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

/** Whether a file belongs to this process or to root; on Windows there is no such owner. */
const isOwn = (uid: number): boolean => [0, process.geteuid?.() ?? uid].includes(uid);
