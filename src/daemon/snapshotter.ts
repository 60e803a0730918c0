/**
 * What a daemon leaves to its successor: how all keys stand, in a file, every now and then and when it stops.
 *
 * A full disk stops nobody: what cannot be saved or used is told, and that is all.
 */

import { access, constants } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { GcraTable } from '../backends/local/gcra-table.ts';
import { type Clock, schedule } from '../core/clock.ts';
import { errorMessageOf } from '../core/errors.ts';
import type { HashSeed } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { SyncLimiter } from '../limiter/sync-limiter.ts';
import type { Config } from './config/read.ts';
import { isConcurrencyLimit, type LimiterRegistry } from './router/limiter-registry.ts';
import { fleetHashSeedOf } from './running-backends.ts';
import { readSnapshot, type Snapshot, type SnapshotPart, writeSnapshot } from './snapshot.ts';

/** How a snapshot calls the keys of CL.THROTTLE; no limit can have this name. */
const GCRA_PART = '*cells';

export interface SnapshotterContext {
  /** That keys were hashed with: without it, nobody finds them again. */
  readonly seed: HashSeed;
  readonly clock: Clock;
  readonly log: Log;
}

export class Snapshotter {
  readonly #registry: LimiterRegistry;
  readonly #gcraTable: GcraTable;
  readonly #context: SnapshotterContext;
  /** Where to, and how often; undefined: nothing is left. */
  #target: Config['snapshot'];
  #cancelSave = (): void => {};
  #isStopped = false;
  /** How often in a row it could not be written there. */
  #failedWrites = { file: '', times: 0 };

  constructor(registry: LimiterRegistry, gcraTable: GcraTable, context: SnapshotterContext) {
    this.#registry = registry;
    this.#gcraTable = gcraTable;
    this.#context = context;
  }

  /** Goes on from what a predecessor left, as far as limits are still the same. */
  restore(previous: Snapshot | undefined): void {
    for (const { name, fingerprint, table } of previous?.parts ?? []) {
      if (name === GCRA_PART) {
        this.#gcraTable.restore(table);
        continue;
      }
      const entry = this.#registry.get(name);
      const isSame = entry?.fingerprint === fingerprint;
      if (isSame && entry.limiter instanceof SyncLimiter) entry.limiter.restore(table);
      else
        this.#context.log('warn', 'snapshot holds a limit that is gone or has changed', {
          limit: name,
        });
    }
  }

  /** From now on there, and as often. Better told now than when there is a state to lose that it cannot be written. */
  async configure(target: Config['snapshot']): Promise<void> {
    this.#target = target;
    this.#scheduleSave();
    if (!target) return;
    const { file } = target;
    try {
      await access(dirname(file), constants.W_OK | constants.X_OK);
    } catch (error) {
      const reason = errorMessageOf(error);
      this.#context.log('warn', 'snapshot cannot be written there', { file, reason });
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

  /** Only when it is asked to. */
  stopSaving(): void {
    this.#isStopped = true;
    this.#cancelSave();
  }

  /** Lays down the state of all keys, if there is a place for it. */
  async save(): Promise<void> {
    if (!this.#target) return;
    const { file } = this.#target;
    const { seed, clock, log } = this.#context;
    const failures = this.#failedWrites.file === file ? this.#failedWrites.times : 0;
    try {
      const parts = this.#collectParts();
      const bytes = await writeSnapshot(file, { savedAt: clock.now(), seed, parts });
      this.#failedWrites = { file, times: 0 };
      if (failures === 0) log('info', 'snapshot written', { file, bytes });
      else log('info', 'snapshot written again', { file, bytes, failures });
    } catch (error) {
      this.#failedWrites = { file, times: failures + 1 };
      const isNews = failures === 0 || this.#isStopped; // the last word counts
      if (isNews) log('error', 'snapshot not written', { file, reason: errorMessageOf(error) });
    }
  }

  /** Calls in flight do not outlive a daemon, so who counts them starts anew. */
  #collectParts(): SnapshotPart[] {
    const cells = { name: GCRA_PART, fingerprint: '', table: this.#gcraTable.snapshot() };
    return [
      cells,
      ...this.#registry.all.flatMap(({ name, fingerprint, limiter }) =>
        limiter instanceof SyncLimiter && !isConcurrencyLimit(limiter)
          ? [{ name, fingerprint, table: limiter.snapshot() }]
          : [],
      ),
    ];
  }
}

/** What a predecessor left, if it can be used. */
export async function loadSnapshot(
  config: Config,
  clock: Clock,
  log: Log,
): Promise<Snapshot | undefined> {
  if (!config.snapshot) return undefined;
  const { file, maxAgeMs } = config.snapshot;
  const read = await readSnapshot(file, clock.now(), maxAgeMs);
  const fleetSeed = fleetHashSeedOf(config);
  if (fleetSeed && 'snapshot' in read && !isSameSeed(read.snapshot.seed, fleetSeed)) {
    log('warn', 'snapshot not used', { file, reason: 'its keys are those of another fleet' });
    return undefined;
  }
  if ('snapshot' in read) {
    log('info', 'snapshot read', { file, limits: read.snapshot.parts.length });
    return read.snapshot;
  }
  if (!read.isMissing) log('warn', 'snapshot not used', { file, reason: read.reason });
  return undefined;
}

const isSameSeed = ([low, high]: HashSeed, other: HashSeed): boolean =>
  low === other[0] && high === other[1];
