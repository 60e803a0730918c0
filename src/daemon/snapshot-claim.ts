/**
 * The claim of a daemon on its snapshot file: no other daemon uses it, and a reload to a file that cannot be written is
 * refused.
 */

import type { Clock } from '../core/clock.ts';
import { ConfigError, errorMessageOf, InUseError } from '../core/errors.ts';
import type { Log } from '../core/log.ts';
import { type LockResult, lockPathOf } from './files/file-lock.ts';
import { tryWriting } from './files/state-file.ts';

export type FileLocker = (file: string, clock: Clock) => Promise<LockResult>;

const NOTHING = async (): Promise<void> => {};

export class SnapshotClaim {
  readonly #lock: FileLocker | undefined;
  readonly #clock: Clock;
  readonly #log: Log;
  #file: string | undefined;
  #release = NOTHING;
  /** The file of a reload that is not in effect yet. */
  #next: { readonly file: string | undefined; readonly release: () => Promise<void> } | undefined;

  constructor(lock: FileLocker | undefined, clock: Clock, log: Log) {
    this.#lock = lock;
    this.#clock = clock;
    this.#log = log;
  }

  /** @throws {ConfigError} if another daemon uses the file */
  async start(file: string | undefined): Promise<void> {
    this.#release = await this.#take(file);
    this.#file = file;
  }

  /** Takes another file, for `commit` or `abort`. @throws {ConfigError} if it is in use or cannot be written */
  async prepare(file: string | undefined): Promise<void> {
    if (file === this.#file) return;
    if (file !== undefined) await requireWritable(file);
    this.#next = { file, release: await this.#take(file) };
  }

  async commit(): Promise<void> {
    if (!this.#next) return;
    const release = this.#release;
    this.#file = this.#next.file;
    this.#release = this.#next.release;
    this.#next = undefined;
    await release();
  }

  async abort(): Promise<void> {
    const next = this.#next;
    this.#next = undefined;
    await next?.release();
  }

  async release(): Promise<void> {
    await this.#release();
    this.#release = NOTHING;
  }

  async #take(file: string | undefined): Promise<() => Promise<void>> {
    if (file === undefined || !this.#lock) return NOTHING;
    const lock = await this.#lock(file, this.#clock);
    if ('release' in lock) return lock.release;
    if ('problem' in lock) {
      const fields = { file: lockPathOf(file), reason: lock.problem };
      this.#log('debug', 'snapshot file is not locked', fields);
      return NOTHING;
    }
    const expected = `a file of its own for each daemon: ${lock.owner} uses this one (${lockPathOf(file)})`;
    throw new InUseError('snapshot.file', expected, file);
  }
}

async function requireWritable(file: string): Promise<void> {
  try {
    await tryWriting(file);
  } catch (error) {
    const expected = `a file that the daemon can write (${errorMessageOf(error)})`;
    throw new ConfigError('snapshot.file', expected, file);
  }
}
