/**
 * Writes every control to disk before its operator gets a reply, so that it outlives a crash and a power loss.
 *
 *     add ──▶ pending ──▶ one write at a time: append and sync ──▶ saved() resolves
 *                ▲                                   │
 *                └─ changes meanwhile: the next one  └─ failed, too long, changed by others: the whole file anew
 *
 * Checks never wait for it: a control is in effect before it is written. A failed write is repeated.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';
import { nextTurn } from '../../core/steps.ts';
import { ControlFile } from './control-file.ts';
import { type ControlRecord, idOf } from './control-record.ts';

/** Whether everything up to now is on disk; if not, why. */
export type SaveResult =
  | { readonly isSaved: true }
  | { readonly isSaved: false; readonly hasFile: boolean; readonly reason: string };

/** How long an operator waits for the disk. */
const MAX_WAIT_MS: Millis = 5000;

/** How often a failed write is repeated. */
const RETRY_MS: Millis = 5000;

/** Changes that wait for a write in progress. If there are more, the whole file is written. */
const MAX_PENDING = 10_000;

/** Resets that the last snapshot does not contain. Beyond this the oldest are dropped. */
const MAX_RESETS = 10_000;

const SAVED: SaveResult = { isSaved: true };

const NO_FILE: SaveResult = {
  isSaved: false,
  hasFile: false,
  reason: 'it ends with the process, because the daemon has no `snapshot` file',
};

const unsaved = (reason: string): SaveResult => ({ isSaved: false, hasFile: true, reason });

interface JournalContext {
  readonly clock: Clock;
  readonly log: Log;
  /** All controls, removals included. */
  readonly records: () => readonly ControlRecord[];
}

export class ControlJournal {
  readonly #context: JournalContext;
  #file: ControlFile | undefined;
  readonly #pending = new Map<string, ControlRecord>();
  /** True if the file may lack changes that are not pending. */
  #isIncomplete = false;
  /** Resets since the last snapshot, which still has what they forgot, by id. Their `setAt` is an instant of this clock. */
  readonly #resets = new Map<string, ControlRecord>();
  /** Instant of the last write; never goes back. */
  #at: Millis = 0;
  /** A write that has not begun: it includes all changes that are pending when it begins. */
  #next: Promise<SaveResult> | undefined;
  #last: Promise<SaveResult> = Promise.resolve(SAVED);
  #cancelRetry = (): void => {};
  #failedWrites = 0;
  #failures = 0;

  constructor(context: JournalContext) {
    this.#context = context;
  }

  /** Failed writes since the start. */
  get failures(): number {
    return this.#failures;
  }

  /** Continues after files of a predecessor: the instant of the later one, and resets that no snapshot contains. */
  resume(at: Millis, resets: readonly ControlRecord[]): void {
    this.#at = Math.max(this.#at, at);
    for (const reset of resets) this.#resets.set(idOf(reset), reset);
  }

  /** Begins a file with all controls; undefined: none is written. */
  configure(path: string | undefined): void {
    if (path === this.#file?.path) return;
    this.#cancelRetry();
    this.#file = path === undefined ? undefined : new ControlFile(path);
    this.#failedWrites = 0;
    this.#pending.clear();
    this.#isIncomplete = this.#file !== undefined;
    if (this.#file) void this.#flush();
  }

  /** Takes records that have just taken effect. */
  add(records: readonly ControlRecord[]): void {
    if (!this.#file || records.length === 0) return;
    for (const record of records) {
      const entry =
        record.kind === 'reset' ? { ...record, setAt: this.#context.clock.now() } : record;
      if (entry.kind === 'reset') this.#keepReset(entry);
      this.#pending.set(idOf(entry), entry);
    }
    if (this.#pending.size > MAX_PENDING) {
      this.#pending.clear();
      this.#isIncomplete = true;
    }
    void this.#flush();
  }

  /** Resolves when the write of all added changes has succeeded or failed; repeats a failed write. */
  async saved(): Promise<SaveResult> {
    if (!this.#file) return NO_FILE;
    const writing = this.#next ?? (this.#isIncomplete ? this.#flush() : this.#last);
    if (await completesWithin(this.#context.clock, MAX_WAIT_MS, writing, false)) return writing;
    return unsaved(`the disk has not confirmed it within ${MAX_WAIT_MS} ms`);
  }

  /** Drops resets before this instant: the snapshot that was written has forgotten their consumption. */
  onSnapshot(savedAt: Millis): void {
    for (const [id, { setAt }] of this.#resets) if (setAt < savedAt) this.#resets.delete(id);
  }

  /** Waits for the last write. */
  async close(): Promise<void> {
    const result = await this.saved();
    this.#cancelRetry();
    const isLogged = this.#failedWrites === 1;
    if (!result.isSaved && result.hasFile && !isLogged) this.#logFailure(result.reason);
    this.#file = undefined;
  }

  #keepReset(reset: ControlRecord): void {
    const id = idOf(reset);
    this.#resets.delete(id); // so that it is the last entry
    this.#resets.set(id, reset);
    if (this.#resets.size <= MAX_RESETS) return;
    const [oldest] = this.#resets.keys();
    this.#resets.delete(oldest);
  }

  /** After the write in progress, and at the end of this turn: changes of one turn are one write. */
  #flush(): Promise<SaveResult> {
    this.#next ??= this.#last.then(nextTurn).then(() => {
      this.#next = undefined;
      this.#last = this.#write();
      return this.#last;
    });
    return this.#next;
  }

  async #write(): Promise<SaveResult> {
    const file = this.#file;
    if (!file) return NO_FILE;
    this.#cancelRetry();
    try {
      await this.#writeTo(file);
      if (file === this.#file) this.#onWritten(file);
      return SAVED;
    } catch (error) {
      const reason = errorMessageOf(error);
      this.#failures++;
      if (file === this.#file) this.#onFailed(reason);
      return unsaved(reason);
    }
  }

  async #writeTo(file: ControlFile): Promise<void> {
    const changes = [...this.#pending.values()];
    this.#pending.clear();
    if (!this.#isIncomplete && !file.isLong) {
      if (changes.length === 0 || (await file.append(changes, this.#nextAt()))) return;
    }
    this.#isIncomplete = false;
    const inEffect = this.#context.records().filter(({ kind }) => kind !== 'reset');
    await file.write([...inEffect, ...this.#resets.values()], this.#nextAt());
  }

  #nextAt(): Millis {
    this.#at = Math.max(this.#context.clock.now(), this.#at + 0.001);
    return this.#at;
  }

  #onWritten({ path }: ControlFile): void {
    const failures = this.#failedWrites;
    this.#failedWrites = 0;
    if (failures > 0) this.#context.log('info', 'controls written again', { file: path, failures });
  }

  /** Logged once; what a failed write has left in the file is not known. */
  #onFailed(reason: string): void {
    this.#isIncomplete = true;
    if (this.#failedWrites++ === 0) this.#logFailure(reason);
    const { clock } = this.#context;
    this.#cancelRetry = schedule(clock, clock.now() + RETRY_MS, () => void this.#flush(), false);
  }

  #logFailure(reason: string): void {
    const file = this.#file?.path ?? '';
    this.#context.log('error', 'controls not written: a crash loses them', { file, reason });
  }
}
