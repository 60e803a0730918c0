/** A write of the snapshot that fails is logged and does not stop the daemon. */

import type { GcraTable } from '../backends/local/gcra-table.ts';
import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { ConfigError, errorMessageOf } from '../core/errors.ts';
import type { HashSeed } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { SyncLimiter } from '../limiter/sync-limiter.ts';
import type { Config } from './config/read.ts';
import { controlFileOf, readControlFile, type StoredControls } from './control/control-file.ts';
import type { ControlJournal } from './control/control-journal.ts';
import type { Controls } from './control/controls.ts';
import { tryWriting } from './files/state-file.ts';
import {
  isConcurrencyLimit,
  isLimitName,
  type LimiterEntry,
  type LimiterRegistry,
} from './router/limiter-registry.ts';
import { fleetHashSeedOf } from './running-backends.ts';
import {
  readSnapshot,
  type Snapshot,
  type SnapshotPart,
  type SnapshotSource,
  writeSnapshot,
} from './snapshot.ts';

/** The part with the keys of CL.THROTTLE; no limit can have this name. */
const GCRA_PART = '*cells';

/** A clock that was set back by more is worth a warning. */
const MAX_CLOCK_SKEW_MS: Millis = 5_000;
const SET_BACK = 'snapshot is from the future: the clock was set back, it counts as written now';

export interface SnapshotterContext {
  readonly seed: HashSeed;
  readonly clock: Clock;
  readonly log: Log;
}

export interface SnapshotStatus {
  /** When the last one was written; undefined: none yet. */
  readonly savedAt: Millis | undefined;
  /** Failed writes since the start, of the journal too. */
  readonly failures: number;
  /** True if a snapshot existed at the start and was not used: its counts are lost. */
  readonly isUnused: boolean;
}

interface LoadedSnapshot {
  /** Undefined: there was none, or nothing of it could be used. */
  readonly previous?: Snapshot | undefined;
  readonly isUnused: boolean;
}

export class Snapshotter {
  readonly #registry: LimiterRegistry;
  readonly #gcraTable: GcraTable;
  readonly #context: SnapshotterContext;
  /** Controls that operators set at run time. */
  controls: Pick<Controls, 'records' | 'merge' | 'replace' | 'repeatResets'> | undefined;
  /** Has the controls that were set since the last snapshot. */
  journal: Pick<ControlJournal, 'resume' | 'configure' | 'onSnapshot' | 'failures'> | undefined;
  /** File and interval; undefined: no snapshots. */
  #target: Config['snapshot'];
  #cancelSave = (): void => {};
  #isStopped = false;
  #lastSave: Promise<void> = Promise.resolve();
  /** Consecutive failures for the current file. */
  #failedWrites = { file: '', times: 0 };
  #savedAt: Millis | undefined;
  #failures = 0;
  #isUnused = false;

  constructor(registry: LimiterRegistry, gcraTable: GcraTable, context: SnapshotterContext) {
    this.#registry = registry;
    this.#gcraTable = gcraTable;
    this.#context = context;
  }

  /**
   * Restores the limits that are unchanged since the snapshot, or have other numbers of the same rule; then the
   * controls of the journal. So the consumption of a key is copied to an override that is later than the snapshot.
   */
  restore({ previous, isUnused }: LoadedSnapshot, stored?: StoredControls): void {
    this.#isUnused = isUnused;
    if (Array.isArray(previous?.controls)) this.controls?.merge(previous.controls);
    this.#restoreParts(previous);
    if (stored) this.#restoreControls(stored, previous);
    else if (previous) this.journal?.resume(previous.savedAt, []);
  }

  /** Both files have all controls of their instant: the later one counts, or both if that is a damaged journal. */
  #restoreControls(stored: StoredControls, previous: Snapshot | undefined): void {
    const { at, records, damagedLines } = stored;
    const savedAt = previous?.savedAt ?? 0;
    const isOutdated = at < savedAt && Array.isArray(previous?.controls);
    if (!isOutdated && damagedLines > 0) this.controls?.merge(records);
    else if (!isOutdated) this.controls?.replace(records);
    const now = this.#context.clock.now();
    const resets = stored.resets
      .filter(({ setAt }) => setAt >= savedAt)
      // The clock may have been set back: a snapshot of this daemon is later.
      .map((reset) => ({ ...reset, setAt: Math.min(reset.setAt, now) }));
    this.controls?.repeatResets(resets);
    this.journal?.resume(Math.max(at, savedAt), resets);
  }

  #restoreParts(previous: Snapshot | undefined): void {
    const now = this.#context.clock.now();
    const setBackMs = Math.max(0, (previous?.savedAt ?? now) - now);
    for (const part of previous?.parts ?? []) {
      const { name, table } = part;
      if (name === GCRA_PART) {
        this.#gcraTable.restore(table, setBackMs);
        continue;
      }
      const entry = this.#registry.get(name) ?? this.#successorOf(name, previous?.parts ?? []);
      if (!restorePart(part, entry, setBackMs, now))
        this.#context.log('warn', 'snapshot holds a limit that is gone or has another rule', {
          limit: name,
        });
    }
  }

  /**
   * The override that has taken the place of one with another rule, and thus another name. It is the only one of its
   * limit that the snapshot does not have, if the limit lacks only one of the snapshot.
   */
  #successorOf(name: string, parts: readonly SnapshotPart[]): LimiterEntry | undefined {
    if (isLimitName(name)) return undefined;
    const limit = name.split('[', 1)[0];
    const isOverride = (other: { readonly name: string }): boolean =>
      other.name.startsWith(`${limit}[`);
    const known = new Set(parts.map((part) => part.name));
    const gone = parts.filter((part) => isOverride(part) && !this.#registry.get(part.name));
    const added = this.#registry.all.filter((entry) => isOverride(entry) && !known.has(entry.name));
    return gone.length === 1 && added.length === 1 ? added[0] : undefined;
  }

  /** Sets file and interval. Warns now if the file cannot be written, not when state would be lost. */
  async configure(target: Config['snapshot']): Promise<void> {
    this.#target = target;
    this.#scheduleSave();
    this.journal?.configure(target && controlFileOf(target.file));
    if (!target) return;
    const { file } = target;
    try {
      await tryWriting(file);
    } catch (error) {
      const reason = errorMessageOf(error);
      this.#context.log('warn', 'snapshot file is not writable', { file, reason });
    }
  }

  #scheduleSave(): void {
    this.#cancelSave();
    const everyMs = this.#target?.everyMs ?? Infinity;
    if (everyMs === Infinity || this.#isStopped) return;
    const { clock } = this.#context;
    const save = (): Promise<void> => this.save().then(() => this.#scheduleSave());
    this.#cancelSave = schedule(clock, clock.now() + everyMs, save, false);
  }

  /** Stops saving at an interval; `save` still works. */
  stopSaving(): void {
    this.#isStopped = true;
    this.#cancelSave();
  }

  get status(): SnapshotStatus {
    const failures = this.#failures + (this.journal?.failures ?? 0);
    return { savedAt: this.#savedAt, failures, isUnused: this.#isUnused };
  }

  /** Resolves when no snapshot is being written: until then, no rule may change. */
  idle(): Promise<void> {
    return this.#lastSave;
  }

  save(): Promise<void> {
    this.#lastSave = this.#lastSave.then(() => this.#write());
    return this.#lastSave;
  }

  async #write(): Promise<void> {
    if (!this.#target) return;
    const { file } = this.#target;
    const { seed, clock, log } = this.#context;
    const failures = this.#failedWrites.file === file ? this.#failedWrites.times : 0;
    try {
      const sources = this.#sources();
      const controls = this.controls?.records;
      const savedAt = clock.now();
      const bytes = await writeSnapshot(file, { savedAt, seed, sources, controls });
      this.journal?.onSnapshot(savedAt);
      this.#failedWrites = { file, times: 0 };
      this.#savedAt = clock.now();
      // That of a stop is the one that counts; a line at every interval says nothing.
      const level = this.#isStopped ? 'info' : 'debug';
      if (failures === 0) log(level, 'snapshot written', { file, bytes });
      else log('info', 'snapshot written again', { file, bytes, failures });
    } catch (error) {
      this.#failedWrites = { file, times: failures + 1 };
      this.#failures++;
      // Logged once, and again for the last write: that state is lost.
      if (failures === 0 || this.#isStopped)
        log('error', 'snapshot not written', { file, reason: errorMessageOf(error) });
    }
  }

  /** Without concurrency limits: calls in flight do not outlive a daemon. */
  *#sources(): Generator<SnapshotSource> {
    yield { name: GCRA_PART, fingerprint: '', slices: () => this.#gcraTable.slices() };
    for (const { name, fingerprint, rule, limiter } of this.#registry.all) {
      if (limiter instanceof SyncLimiter && !isConcurrencyLimit(limiter))
        yield { name, fingerprint, limit: rule.limit, slices: () => limiter.slices() };
    }
  }
}

/** Restores the keys of one limit; false if it is gone, or its rule is of another kind. */
function restorePart(
  { fingerprint, limit, table: stored }: SnapshotPart,
  entry: LimiterEntry | undefined,
  setBackMs: Millis,
  now: Millis,
): boolean {
  if (!(entry?.limiter instanceof SyncLimiter)) return false;
  try {
    const isSame = entry.fingerprint === fingerprint;
    const rule = isSame ? entry.rule.limit : limit;
    if (rule === undefined) return false;
    const { limiter } = entry;
    const table = setBackMs > 0 ? limiter.setBack(stored, rule, setBackMs, now) : stored;
    return isSame ? limiter.restore(table) : limiter.restore(table, rule);
  } catch (error) {
    if (error instanceof ConfigError) return false; // a rule that this version does not know
    throw error;
  }
}

/** The snapshot of the predecessor, if it can be used. */
export async function loadSnapshot(
  config: Config,
  clock: Clock,
  log: Log,
): Promise<LoadedSnapshot> {
  if (!config.snapshot) return { isUnused: false };
  const { file, maxAgeMs } = config.snapshot;
  const read = await readSnapshot(file, clock.now(), maxAgeMs);
  const fleetSeed = fleetHashSeedOf(config);
  if (fleetSeed && 'snapshot' in read && !isSameSeed(read.snapshot.seed, fleetSeed)) {
    log('warn', 'snapshot not used', { file, reason: 'its keys are those of another fleet' });
    return { previous: { ...read.snapshot, parts: [] }, isUnused: true };
  }
  if ('snapshot' in read) {
    const setBackMs = read.snapshot.savedAt - clock.now();
    if (setBackMs > MAX_CLOCK_SKEW_MS)
      log('warn', SET_BACK, { file, setBackMs: Math.round(setBackMs) });
    const isLimit = ({ name }: SnapshotPart) => name !== GCRA_PART && isLimitName(name);
    log('info', 'snapshot read', { file, limits: read.snapshot.parts.filter(isLimit).length });
    return { previous: read.snapshot, isUnused: false };
  }
  if (!read.isMissing) log('warn', 'snapshot not used', { file, reason: read.reason });
  return { previous: read.controlsOnly, isUnused: !read.isMissing };
}

/** The journal of the predecessor, if it can be used. */
export async function loadControls(
  { snapshot }: Config,
  log: Log,
): Promise<StoredControls | undefined> {
  if (!snapshot) return undefined;
  const file = controlFileOf(snapshot.file);
  const read = await readControlFile(file);
  if ('reason' in read) {
    if (!read.isMissing) log('warn', 'controls not used', { file, reason: read.reason });
    return undefined;
  }
  const { damagedLines, records } = read;
  if (damagedLines > 0)
    log('warn', 'controls are damaged: the rest is used', {
      file,
      damagedLines,
      controls: records.length,
    });
  return read;
}

const isSameSeed = (seed: HashSeed, other: HashSeed): boolean =>
  seed.length === other.length && seed.every((word, n) => word === other[n]);
