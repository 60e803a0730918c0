/** Keeps in a pool's store what its ramps have reached, and tells those of this process what others have left there. */

import type { Millis } from '../../core/clock.ts';
import {
  mergeRampLevels,
  parseRampLevels,
  type RampLevel,
  type RampProgress,
  serializeRampLevels,
} from './ramp-levels.ts';
import type { PoolStore } from './store.ts';

/** A limit that can go on from where others were. */
export interface CheckpointedLimit {
  readonly name: string;
  readonly rampProgress: RampProgress;
  readonly resumeForMs: Millis;
  /** How high the ramp of a key is now. */
  levelOf(key: string): number | undefined;
}

/** Noted so often while there are calls: by so much a ramp may be behind after a crash. */
const SAVE_INTERVAL_MS: Millis = 5000;

export class RampCheckpoint {
  readonly #store: PoolStore;
  readonly #pool: string;
  readonly #limits = new Set<CheckpointedLimit>();
  /** Undefined until the store has answered. */
  #loadedLevels: ReadonlyMap<string, ReadonlyMap<string, RampLevel>> | undefined;
  #nextSaveAt: Millis = -Infinity;

  constructor(store: PoolStore, pool: string) {
    this.#store = store;
    this.#pool = pool;
  }

  add(limit: CheckpointedLimit): () => void {
    this.#limits.add(limit);
    this.#restoreLimit(limit);
    return () => this.#limits.delete(limit);
  }

  get hasLoaded(): boolean {
    return this.#loadedLevels !== undefined;
  }

  /** Asks what was left; rejects if the store cannot be reached. */
  async load(): Promise<void> {
    this.#loadedLevels = parseRampLevels(await this.#store.loadCheckpoint(this.#pool));
    for (const limit of this.#limits) this.#restoreLimit(limit);
  }

  /** Notes what was reached, if it is time to. */
  async saveIfDue(now: Millis): Promise<void> {
    if (now >= this.#nextSaveAt) await this.save(now);
  }

  /** @param now on the store's clock. */
  async save(now: Millis): Promise<void> {
    this.#nextSaveAt = now + SAVE_INTERVAL_MS;
    const own = new Map(
      [...this.#limits].map((limit) => [limit.name, currentLevelsOf(limit, now)]),
    );
    if (![...own.values()].some(({ size }) => size > 0)) return;
    const keepMs = Math.max(...[...this.#limits].map(({ resumeForMs }) => resumeForMs));
    const noted = parseRampLevels(await this.#store.loadCheckpoint(this.#pool));
    const text = serializeRampLevels(mergeRampLevels([own, noted], now - keepMs));
    await this.#store.saveCheckpoint(this.#pool, text, keepMs);
  }

  #restoreLimit({ name, rampProgress }: CheckpointedLimit): void {
    const levels = this.#loadedLevels?.get(name);
    if (levels) rampProgress.setRestorable(levels);
  }
}

function currentLevelsOf(
  { rampProgress, levelOf }: CheckpointedLimit,
  now: Millis,
): Map<string, RampLevel> {
  const levels = new Map<string, RampLevel>();
  for (const key of rampProgress.drainCalledKeys()) {
    const pool = levelOf(key);
    if (pool !== undefined) levels.set(key, [pool, now]);
  }
  return levels;
}
