/**
 * Ramp checkpoints: the levels that ramps have reached, saved in the pool's store. A member that joins, or starts after
 * all members have left, resumes from them instead of ramping up again.
 *
 *     onCall(key) ──▶ twice a second, and on leaving ──▶ { limit: { key: [level, at] } } ──▶ store
 *     first call of a key ◀── saved level, if not older than the limit's `resumeFor` ◀── store
 *
 * A level changes once a second. Every 500 ms a member reads the levels of all members, and writes its own if they are
 * newer. The first member writes the levels of a second in its first half, and all members know them in its second
 * half. So a key that begins in the next second is one step behind.
 *
 * The latest second of a key counts, and in it the highest level. A lost write is repeated soon.
 */

import type { Millis } from '../../core/clock.ts';
import { tryParseJson } from '../../core/json.ts';
import type { PoolStore } from './store.ts';

/** The level of a key's ramp, and the time at which it was reached, on the store's clock. */
export type RampLevel = readonly [level: number, at: Millis];

type RampLevels = ReadonlyMap<string, RampLevel>;
type LevelsByLimit = ReadonlyMap<string, RampLevels>;

/** A limit whose ramp levels are saved. */
export interface CheckpointedLimit {
  readonly name: string;
  readonly rampProgress: RampProgress;
  readonly resumeForMs: Millis;
  levelOf(key: string): number | undefined;
}

const SECOND_MS: Millis = 1000;
const EXCHANGE_MS: Millis = SECOND_MS / 2;

/** The most keys that are saved, over all limits of a pool: those called last. */
const MAX_KEYS = 1000;
/** Keys with longer names are not saved. */
const MAX_NAME = 256;

/** The keys of one limit: those called since the last save, and saved levels that have not been resumed yet. */
export class RampProgress {
  readonly #resume: (key: string, level: RampLevel) => void;
  #calledKeys = new Set<string>();
  #lastKey: string | undefined;
  #restorable = new Map<string, RampLevel>();

  constructor(resume: (key: string, level: RampLevel) => void) {
    this.#resume = resume;
  }

  /** Must run before a call of the key is decided. */
  onCall(key: string): void {
    if (key === this.#lastKey) return;
    this.#lastKey = key;
    if (this.#calledKeys.size < MAX_KEYS && key.length <= MAX_NAME) this.#calledKeys.add(key);
    const level = this.#restorable.get(key);
    if (!level) return;
    this.#restorable.delete(key);
    this.#resume(key, level);
  }

  setRestorable(levels: RampLevels): void {
    this.#restorable = new Map(levels);
  }

  /** Keys called since the last drain. */
  drainCalledKeys(): readonly string[] {
    const called = [...this.#calledKeys];
    this.#calledKeys = new Set();
    this.#lastKey = undefined;
    return called;
  }
}

/** Exchanges the ramp levels of one pool. */
export class RampCheckpoint {
  readonly #store: PoolStore;
  readonly #pool: string;
  readonly #limits = new Set<CheckpointedLimit>();
  /** Undefined until the store has replied. */
  #loadedLevels: LevelsByLimit | undefined;
  #nextExchangeAt: Millis = -Infinity;

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

  /** Loads the saved levels. Rejects if the store is unavailable. */
  async load(): Promise<LevelsByLimit> {
    const levels = parseRampLevels(await this.#store.loadCheckpoint(this.#pool));
    this.#loadedLevels = levels;
    for (const limit of this.#limits) this.#restoreLimit(limit);
    return levels;
  }

  /** Exchanges levels if the interval has passed. @param now on the store's clock. */
  async exchangeIfDue(now: Millis): Promise<void> {
    if (now < this.#nextExchangeAt) return;
    this.#nextExchangeAt = (Math.floor(now / EXCHANGE_MS) + 1) * EXCHANGE_MS;
    await this.exchange(now);
  }

  /** Exchanges levels with the store. @param now on the store's clock. */
  async exchange(now: Millis): Promise<void> {
    if (this.#limits.size === 0) return;
    const current = new Map(
      [...this.#limits].map((limit) => [limit.name, currentLevelsOf(limit, now)]),
    );
    const saved = await this.load();
    const newer = newerLevels(current, saved);
    if (![...newer.values()].some(({ size }) => size > 0)) return;
    const keepMs = Math.max(...[...this.#limits].map(({ resumeForMs }) => resumeForMs));
    const text = serializeRampLevels(mergeRampLevels([newer, saved], now - keepMs));
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
    const level = levelOf(key);
    if (level !== undefined) levels.set(key, [level, now]);
  }
  return levels;
}

/** The levels that are not saved yet. */
function newerLevels(current: LevelsByLimit, saved: LevelsByLimit): LevelsByLimit {
  const isNewer = (limit: string, key: string, [level, at]: RampLevel): boolean => {
    const [savedLevel, savedAt] = saved.get(limit)?.get(key) ?? [0, -Infinity];
    const seconds = Math.floor(at / SECOND_MS) - Math.floor(savedAt / SECOND_MS);
    return seconds > 0 || (seconds === 0 && level > savedLevel);
  };
  return new Map(
    [...current].map(([limit, levels]) => [
      limit,
      new Map([...levels].filter(([key, level]) => isNewer(limit, key, level))),
    ]),
  );
}

/** The latest level of each key of each limit, without levels older than `since`, at most `MAX_KEYS`. */
function mergeRampLevels(all: readonly LevelsByLimit[], since: Millis): LevelsByLimit {
  const flat = all
    .flatMap((limits) => [...limits])
    .flatMap(([limit, levels]) => [...levels].map(([key, level]) => ({ limit, key, level })))
    .filter(({ level: [, at] }) => at >= since)
    .sort((one, other) => other.level[1] - one.level[1]);
  const merged = new Map<string, Map<string, RampLevel>>();
  let count = 0;
  for (const { limit, key, level } of flat) {
    const levels = merged.get(limit) ?? new Map<string, RampLevel>();
    if (count === MAX_KEYS) break;
    if (levels.has(key)) continue;
    merged.set(limit, levels.set(key, level));
    count++;
  }
  return merged;
}

const serializeRampLevels = (limits: LevelsByLimit): string =>
  JSON.stringify([...limits].map(([limit, levels]) => [limit, [...levels]]));

/** Text that cannot be parsed counts as empty. */
function parseRampLevels(text: string | undefined): LevelsByLimit {
  const limits = new Map<string, RampLevels>();
  for (const [limit, levels] of namedPairsOf(tryParseJson(text ?? ''))) {
    const parsed = new Map<string, RampLevel>();
    for (const [key, level] of namedPairsOf(levels)) if (isRampLevel(level)) parsed.set(key, level);
    limits.set(limit, parsed);
  }
  return limits;
}

function namedPairsOf(value: unknown): [string, unknown][] {
  if (!Array.isArray(value)) return [];
  return value.filter((pair) => Array.isArray(pair) && typeof pair[0] === 'string');
}

const isRampLevel = (value: unknown): value is RampLevel =>
  Array.isArray(value) && value.length === 2 && value.every(Number.isFinite);
