/** The bytes of a log: a file or standard input, decompressed if they begin as gzip does, whatever the name says. */

import { createReadStream, fstatSync, openSync, type ReadStream } from 'node:fs';
import { createGunzip } from 'node:zlib';
import { CommandError } from '../framework/command.ts';

const CHUNK_BYTES = 512 * 1024;

const STDIN = 0;
export const STDIN_NAME = '-';

export class LogBytes {
  readonly name: string;
  /** Bytes of the file; undefined if that cannot be known, as for a pipe. */
  readonly size: number | undefined;
  /** Bytes of the file that were read. */
  done = 0;
  /** Why the bytes ended too early: a truncated or damaged gzip file. */
  damage: string | undefined;
  readonly #stream: ReadStream;

  /** @throws {CommandError} if the file cannot be read. */
  constructor(path: string) {
    this.name = path === STDIN_NAME ? 'standard input' : path;
    try {
      const fd = path === STDIN_NAME ? STDIN : openSync(path, 'r');
      const stat = fstatSync(fd);
      if (stat.isDirectory()) throw new Error('it is a directory');
      this.size = stat.isFile() ? stat.size : undefined;
      this.#stream = createReadStream('', {
        fd,
        autoClose: fd !== STDIN,
        highWaterMark: CHUNK_BYTES,
      });
    } catch (error) {
      throw new CommandError(`cannot read ${this.name}: ${(error as Error).message}`);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    const raw = this.#rawChunks();
    let first: Buffer = Buffer.alloc(0);
    while (first.length < GZIP_MAGIC.length) {
      const { value, done } = await raw.next();
      if (done) break;
      first = Buffer.concat([first, value]);
    }
    for (const [magic, tool] of OTHER_COMPRESSION)
      if (first.toString('latin1', 0, magic.length) === magic)
        throw new CommandError(
          `${this.name} is compressed, and not with gzip; use: ${tool} ${this.name} | sluice … -`,
        );
    if (!first.subarray(0, GZIP_MAGIC.length).equals(GZIP_MAGIC)) {
      if (first.length > 0) yield first;
      yield* raw;
      return;
    }
    const gunzip = createGunzip({ chunkSize: CHUNK_BYTES });
    const feed = async (): Promise<void> => {
      const write = (chunk: Buffer) =>
        gunzip.write(chunk) ||
        new Promise((resolve) => gunzip.once('drain', resolve).once('close', resolve));
      try {
        await write(first);
        for await (const chunk of raw) {
          if (gunzip.destroyed) return;
          await write(chunk);
        }
        gunzip.end();
      } catch (error) {
        gunzip.destroy(error as Error);
      }
    };
    const fed = feed();
    try {
      yield* gunzip as AsyncIterable<Buffer>;
    } catch (error) {
      if (error instanceof CommandError) throw error;
      this.damage = `the gzip file is truncated or damaged (${(error as Error).message})`;
    }
    await fed;
  }

  async *#rawChunks(): AsyncGenerator<Buffer> {
    try {
      for await (const chunk of this.#stream as AsyncIterable<Buffer>) {
        this.done += chunk.length;
        yield chunk;
      }
    } catch (error) {
      throw new CommandError(`cannot read ${this.name}: ${(error as Error).message}`);
    }
  }
}

/** First bytes of other formats, and what decompresses them. */
const OTHER_COMPRESSION: readonly (readonly [magic: string, tool: string])[] = [
  ['\xfd7zXZ', 'xzcat'],
  ['\x28\xb5\x2f\xfd', 'zstdcat'],
  ['BZh', 'bzcat'],
];

const GZIP_MAGIC = Buffer.from([0x1f, 0x8b]);
