/** Keeps in a pool's store what its ramps have reached, and tells those of this process what others have left there. */

import type { Millis } from '../../core/clock.ts';
import { type Climb, type Level, mergeLevels, readLevels, writeLevels } from './ramp-levels.ts';
import type { PoolStore } from './store.ts';

/** A limit that can go on from where others were. */
export interface Climbing {
  readonly name: string;
  readonly climb: Climb;
  readonly resumeForMs: Millis;
  /** How high the ramp of a key is now. */
  levelOf(key: string): number | undefined;
}

/** Noted so often while there are calls: by so much a ramp may be behind after a crash. */
const NOTE_EVERY_MS: Millis = 5000;

export class Keeper {
  readonly #store: PoolStore;
  readonly #pool: string;
  readonly #limits = new Set<Climbing>();
  /** Undefined until the store has answered. */
  #left: ReadonlyMap<string, ReadonlyMap<string, Level>> | undefined;
  #noteAt: Millis = -Infinity;

  constructor(store: PoolStore, pool: string) {
    this.#store = store;
    this.#pool = pool;
  }

  add(limit: Climbing): () => void {
    this.#limits.add(limit);
    this.#tell(limit);
    return () => this.#limits.delete(limit);
  }

  get hasRecalled(): boolean {
    return this.#left !== undefined;
  }

  /** Asks what was left; rejects if the store cannot be reached. */
  async recall(): Promise<void> {
    this.#left = readLevels(await this.#store.recall(this.#pool));
    for (const limit of this.#limits) this.#tell(limit);
  }

  /** Notes what was reached, if it is time to. */
  async noteInTime(now: Millis): Promise<void> {
    if (now >= this.#noteAt) await this.note(now);
  }

  /** @param now on the store's clock. */
  async note(now: Millis): Promise<void> {
    this.#noteAt = now + NOTE_EVERY_MS;
    const own = new Map([...this.#limits].map((limit) => [limit.name, reachedBy(limit, now)]));
    if (![...own.values()].some(({ size }) => size > 0)) return;
    const keepMs = Math.max(...[...this.#limits].map(({ resumeForMs }) => resumeForMs));
    const noted = readLevels(await this.#store.recall(this.#pool));
    const text = writeLevels(mergeLevels([own, noted], now - keepMs));
    await this.#store.note(this.#pool, text, keepMs);
  }

  #tell({ name, climb }: Climbing): void {
    const levels = this.#left?.get(name);
    if (levels) climb.leave(levels);
  }
}

function reachedBy({ climb, levelOf }: Climbing, now: Millis): Map<string, Level> {
  const levels = new Map<string, Level>();
  for (const key of climb.takeCalled()) {
    const pool = levelOf(key);
    if (pool !== undefined) levels.set(key, [pool, now]);
  }
  return levels;
}
