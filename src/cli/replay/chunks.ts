/** The bytes of a log: a file or standard input, decompressed if they begin as gzip does, whatever the name says. */

import { createReadStream, fstatSync, openSync } from 'node:fs';
import { createGunzip } from 'node:zlib';
import { CommandError } from '../framework/command.ts';

const CHUNK_BYTES = 512 * 1024;

/** Bytes that are decompressed at once. They may become a thousand times as many, and are lost if one is damaged. */
const GZIP_PIECE_BYTES = 16 * 1024;

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
  readonly #stream: AsyncIterable<Buffer>;

  /** @throws {CommandError} if the file cannot be read. */
  constructor(path: string) {
    this.name = path === STDIN_NAME ? 'standard input' : path;
    try {
      const fd = path === STDIN_NAME ? STDIN : openSync(path, 'r');
      const stat = fstatSync(fd);
      if (stat.isDirectory()) throw new Error('it is a directory');
      this.size = stat.isFile() ? stat.size : undefined;
      // Standard input may be a pipe that does not block, which only its own stream can read.
      this.#stream =
        fd === STDIN ? process.stdin : createReadStream('', { fd, highWaterMark: CHUNK_BYTES });
    } catch (error) {
      throw new CommandError(`cannot read ${this.name}: ${(error as Error).message}`);
    }
  }

  /** Ends the stream when its reader stops, so that the process does not wait for more input. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    const raw = this.#rawChunks();
    try {
      yield* this.#plainChunks(raw);
    } finally {
      await raw.return(undefined);
    }
  }

  async *#plainChunks(raw: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
    let first: Buffer = Buffer.alloc(0);
    while (first.length < MAGIC_BYTES) {
      const { value, done } = await raw.next();
      if (done) break;
      first = Buffer.concat([first, value]);
    }
    for (const [magic, tool] of OTHER_COMPRESSION)
      if (first.toString('latin1', 0, magic.length) === magic)
        throw new CommandError(
          `${this.name} is compressed, and not with gzip; use: ${tool} ${this.name} | sluice … -`,
        );
    if (first.subarray(0, GZIP_MAGIC.length).equals(GZIP_MAGIC)) {
      yield* this.#decompressed(first, raw);
      return;
    }
    if (first.length > 0) yield first;
    yield* raw;
  }

  /** Output that precedes damage counts: a stream that is read in the usual way would discard it. */
  async *#decompressed(first: Buffer, raw: AsyncGenerator<Buffer>): AsyncGenerator<Buffer> {
    const gunzip = createGunzip({ chunkSize: CHUNK_BYTES });
    const output: Buffer[] = [];
    gunzip.on('data', (chunk: Buffer) => output.push(chunk));
    gunzip.on('error', ({ message }) => {
      this.damage = `the gzip file is truncated or damaged (${message})`;
    });
    const closed = new Promise<void>((resolve) => gunzip.once('close', resolve));
    const write = (piece: Buffer): Promise<void> =>
      Promise.race([closed, new Promise<void>((resolve) => gunzip.write(piece, () => resolve()))]);
    for (let chunk: Buffer | undefined = first; chunk; chunk = (await raw.next()).value) {
      for (let from = 0; from < chunk.length && !gunzip.destroyed; from += GZIP_PIECE_BYTES) {
        // Another thread decompresses the next piece while the output of the last one is used.
        const written = write(chunk.subarray(from, from + GZIP_PIECE_BYTES));
        yield* output.splice(0);
        await written;
      }
      if (gunzip.destroyed) break;
    }
    gunzip.end();
    await closed;
    yield* output;
  }

  async *#rawChunks(): AsyncGenerator<Buffer> {
    try {
      for await (const chunk of this.#stream) {
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

/** Enough for all of them. */
const MAGIC_BYTES = 5;
