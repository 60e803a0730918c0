/**
 * What a daemon leaves to its successor: how all keys stand, in a file, every now and then and when it stops.
 *
 * A full disk stops nobody: what cannot be saved or used is told, and that is all.
 */

import { access, constants } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Cells } from '../backends/local/gcra-table.ts';
import { alarm, type Clock } from '../core/clock.ts';
import { reasonOf } from '../core/errors.ts';
import type { HashSeed } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { Engine } from '../limiter/sync-limiter.ts';
import { seedOf } from './backends/peers.ts';
import type { Config } from './config/read.ts';
import { countsFlights, type Shelf } from './router/limiter-registry.ts';
import { readSnapshot, type Snapshot, type SnapshotPart, writeSnapshot } from './snapshot.ts';

/** How a snapshot calls the keys of CL.THROTTLE; no limit can have this name. */
const CELLS = '*cells';

export interface EstateSetting {
  /** That keys were hashed with: without it, nobody finds them again. */
  readonly seed: HashSeed;
  readonly clock: Clock;
  readonly log: Log;
}

export class Estate {
  readonly #shelf: Shelf;
  readonly #cells: Cells;
  readonly #setting: EstateSetting;
  /** Where to, and how often; undefined: nothing is left. */
  #place: Config['snapshot'];
  #cancel = (): void => {};
  #isOver = false;
  /** How often in a row it could not be written there. */
  #unsaved = { file: '', times: 0 };

  constructor(shelf: Shelf, cells: Cells, setting: EstateSetting) {
    this.#shelf = shelf;
    this.#cells = cells;
    this.#setting = setting;
  }

  /** Goes on from what a predecessor left, as far as limits are still the same. */
  inherit(left: Snapshot | undefined): void {
    for (const { name, fingerprint, copy } of left?.parts ?? []) {
      if (name === CELLS) {
        this.#cells.takeOver(copy);
        continue;
      }
      const shelved = this.#shelf.get(name);
      const isSame = shelved?.fingerprint === fingerprint;
      if (isSame && shelved.engine instanceof Engine) shelved.engine.takeOver(copy);
      else
        this.#setting.log('warn', 'snapshot holds a limit that is gone or has changed', {
          limit: name,
        });
    }
  }

  /** From now on there, and as often. Better told now than when there is a state to lose that it cannot be written. */
  async change(place: Config['snapshot']): Promise<void> {
    this.#place = place;
    this.#saveLater();
    if (!place) return;
    const { file } = place;
    try {
      await access(dirname(file), constants.W_OK | constants.X_OK);
    } catch (error) {
      const reason = reasonOf(error);
      this.#setting.log('warn', 'snapshot cannot be written there', { file, reason });
    }
  }

  #saveLater(): void {
    this.#cancel();
    const everyMs = this.#place?.everyMs ?? Infinity;
    if (everyMs === Infinity || this.#isOver) return;
    const { clock } = this.#setting;
    const save = (): Promise<void> => this.save().then(() => this.#saveLater());
    this.#cancel = alarm(clock, clock.now() + everyMs, save, false);
  }

  /** Only when it is asked to. */
  saveNoMore(): void {
    this.#isOver = true;
    this.#cancel();
  }

  /** Lays down the state of all keys, if there is a place for it. */
  async save(): Promise<void> {
    if (!this.#place) return;
    const { file } = this.#place;
    const { seed, clock, log } = this.#setting;
    const failures = this.#unsaved.file === file ? this.#unsaved.times : 0;
    try {
      const parts = this.#parts();
      const bytes = await writeSnapshot(file, { savedAt: clock.now(), seed, parts });
      this.#unsaved = { file, times: 0 };
      if (failures === 0) log('info', 'snapshot written', { file, bytes });
      else log('info', 'snapshot written again', { file, bytes, failures });
    } catch (error) {
      this.#unsaved = { file, times: failures + 1 };
      const isNews = failures === 0 || this.#isOver; // the last word counts
      if (isNews) log('error', 'snapshot not written', { file, reason: reasonOf(error) });
    }
  }

  /** Calls in flight do not outlive a daemon, so who counts them starts anew. */
  #parts(): SnapshotPart[] {
    const cells = { name: CELLS, fingerprint: '', copy: this.#cells.copy() };
    return [
      cells,
      ...this.#shelf.all.flatMap(({ name, fingerprint, engine }) =>
        engine instanceof Engine && !countsFlights(engine)
          ? [{ name, fingerprint, copy: engine.copy() }]
          : [],
      ),
    ];
  }
}

/** What a predecessor left, if it can be used. */
export async function inheritance(
  { snapshot, peers }: Config,
  clock: Clock,
  log: Log,
): Promise<Snapshot | undefined> {
  if (!snapshot) return undefined;
  const { file, ageMsMax } = snapshot;
  const read = await readSnapshot(file, clock.now(), ageMsMax);
  const isOurs = !peers || !('snapshot' in read) || isSame(read.snapshot.seed, seedOf(peers));
  if (!isOurs) {
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

const isSame = ([low, high]: HashSeed, other: HashSeed): boolean =>
  low === other[0] && high === other[1];
