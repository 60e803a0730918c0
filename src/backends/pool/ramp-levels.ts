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
import { tryParseJson } from '../../core/json.ts';

/** How high the ramp of a key was, and when, on the store's clock. */
export type RampLevel = readonly [pool: number, at: Millis];

type RampLevels = ReadonlyMap<string, RampLevel>;

/** The most keys that are kept, of all limits of a pool: those called last. */
const MAX_KEYS = 1000;
/** Longer names are not kept. */
const MAX_NAME = 256;

/** One limit's keys: which were called, and what was left of them. */
export class RampProgress {
  readonly #resume: (key: string, level: RampLevel) => void;
  #calledKeys = new Set<string>();
  #lastKey: string | undefined;
  #restorable = new Map<string, RampLevel>();

  constructor(resume: (key: string, level: RampLevel) => void) {
    this.#resume = resume;
  }

  /** Before a key's call is decided. */
  onCall(key: string): void {
    if (key === this.#lastKey) return;
    this.#lastKey = key;
    if (this.#calledKeys.size < MAX_KEYS && key.length <= MAX_NAME) this.#calledKeys.add(key);
    const level = this.#restorable.get(key);
    if (!level) return;
    this.#restorable.delete(key);
    this.#resume(key, level);
  }

  /** What others have left. */
  setRestorable(levels: RampLevels): void {
    this.#restorable = new Map(levels);
  }

  /** Keys that were called since this was asked last. */
  drainCalledKeys(): readonly string[] {
    const called = [...this.#calledKeys];
    this.#calledKeys = new Set();
    this.#lastKey = undefined;
    return called;
  }
}

/** Of each key of each limit what was noted last, without what is older than `since`, and no more than are kept. */
export function mergeRampLevels(
  all: readonly ReadonlyMap<string, RampLevels>[],
  since: Millis,
): Map<string, Map<string, RampLevel>> {
  const flat = all
    .flatMap((limits) => [...limits])
    .flatMap(([limit, levels]) => [...levels].map(([key, level]) => ({ limit, key, level })))
    .filter(({ level: [, at] }) => at >= since)
    .sort((one, other) => other.level[1] - one.level[1]);
  const merged = new Map<string, Map<string, RampLevel>>();
  let kept = 0;
  for (const { limit, key, level } of flat) {
    const levels = merged.get(limit) ?? new Map<string, RampLevel>();
    if (kept === MAX_KEYS) break;
    if (levels.has(key)) continue;
    merged.set(limit, levels.set(key, level));
    kept++;
  }
  return merged;
}

export function serializeRampLevels(limits: ReadonlyMap<string, RampLevels>): string {
  return JSON.stringify([...limits].map(([limit, levels]) => [limit, [...levels]]));
}

/** Whatever cannot be read was written by somebody else, and counts as nothing. */
export function parseRampLevels(text: string | undefined): Map<string, Map<string, RampLevel>> {
  const limits = new Map<string, Map<string, RampLevel>>();
  for (const [limit, levels] of namedPairsOf(tryParseJson(text ?? ''))) {
    const own = new Map<string, RampLevel>();
    for (const [key, level] of namedPairsOf(levels)) if (isRampLevel(level)) own.set(key, level);
    limits.set(limit, own);
  }
  return limits;
}

function namedPairsOf(value: unknown): [string, unknown][] {
  if (!Array.isArray(value)) return [];
  return value.filter((pair) => Array.isArray(pair) && typeof pair[0] === 'string');
}

const isRampLevel = (value: unknown): value is RampLevel =>
  Array.isArray(value) && value.length === 2 && value.every(Number.isFinite);
