/**
 * What ramps have reached, left in the pool's store for those who come later: who joins, or is started anew after all
 * have gone, goes on from there instead of climbing again.
 *
 *     called(key) ──▶ every few seconds, and when leaving ──▶ { limit: { key: [pool, at] } } ──▶ store
 *     a key's first call ◀── what was left, if it is not older than the limit's `resumeFor` ◀── store
 *
 * Several members write it: of each key, what was noted last counts. One that is lost is written again soon.
 */

import type { Millis } from '../../core/clock.ts';
import { jsonIn } from '../../core/json.ts';

/** How high the ramp of a key was, and when, on the store's clock. */
export type Level = readonly [pool: number, at: Millis];

type Levels = ReadonlyMap<string, Level>;

/** The most keys that are kept, of all limits of a pool: those called last. */
const KEYS_MAX = 1000;
/** Longer names are not kept. */
const NAME_MAX = 256;

/** One limit's keys: which were called, and what was left of them. */
export class Climb {
  readonly #resume: (key: string, level: Level) => void;
  #called = new Set<string>();
  #last: string | undefined;
  #left = new Map<string, Level>();

  constructor(resume: (key: string, level: Level) => void) {
    this.#resume = resume;
  }

  /** Before a key's call is decided. */
  called(key: string): void {
    if (key === this.#last) return;
    this.#last = key;
    if (this.#called.size < KEYS_MAX && key.length <= NAME_MAX) this.#called.add(key);
    const level = this.#left.get(key);
    if (!level) return;
    this.#left.delete(key);
    this.#resume(key, level);
  }

  /** What others have left. */
  leave(levels: Levels): void {
    this.#left = new Map(levels);
  }

  /** Keys that were called since this was asked last. */
  takeCalled(): readonly string[] {
    const called = [...this.#called];
    this.#called = new Set();
    this.#last = undefined;
    return called;
  }
}

/** Of each key of each limit what was noted last, without what is older than `since`, and no more than are kept. */
export function mergeLevels(
  all: readonly ReadonlyMap<string, Levels>[],
  since: Millis,
): Map<string, Map<string, Level>> {
  const flat = all
    .flatMap((limits) => [...limits])
    .flatMap(([limit, levels]) => [...levels].map(([key, level]) => ({ limit, key, level })))
    .filter(({ level: [, at] }) => at >= since)
    .sort((one, other) => other.level[1] - one.level[1]);
  const merged = new Map<string, Map<string, Level>>();
  let kept = 0;
  for (const { limit, key, level } of flat) {
    const levels = merged.get(limit) ?? new Map<string, Level>();
    if (kept === KEYS_MAX) break;
    if (levels.has(key)) continue;
    merged.set(limit, levels.set(key, level));
    kept++;
  }
  return merged;
}

export function writeLevels(limits: ReadonlyMap<string, Levels>): string {
  return JSON.stringify([...limits].map(([limit, levels]) => [limit, [...levels]]));
}

/** Whatever cannot be read was written by somebody else, and counts as nothing. */
export function readLevels(text: string | undefined): Map<string, Map<string, Level>> {
  const limits = new Map<string, Map<string, Level>>();
  for (const [limit, levels] of pairsOf(jsonIn(text ?? ''))) {
    const own = new Map<string, Level>();
    for (const [key, level] of pairsOf(levels)) if (isLevel(level)) own.set(key, level);
    limits.set(limit, own);
  }
  return limits;
}

function pairsOf(value: unknown): [string, unknown][] {
  if (!Array.isArray(value)) return [];
  return value.filter((pair) => Array.isArray(pair) && typeof pair[0] === 'string');
}

const isLevel = (value: unknown): value is Level =>
  Array.isArray(value) && value.length === 2 && value.every(Number.isFinite);
