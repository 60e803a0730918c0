/**
 * Permits that callers of the daemon hold: by a name that travels, until they settle.
 *
 * A limiter takes back what was held for too long (`holdMax`), so nothing is lost when a caller dies;
 * those are forgotten here as new ones come, so that there are few more than are out.
 */

import type { Random } from '../../core/random.ts';
import type { Permit } from '../../limiter/permit.ts';

/** Callers that hold more than this at once get no permit to settle with: they are let through. */
const PERMITS_MAX = 1_000_000;

/** So many come at least, and at most, between two looks for those that were lost. */
const SWEEP_EVERY_MIN = 1024;
const SWEEP_EVERY_MAX = 65_536;

type Result = Parameters<Permit['settle']>[0];

export class Permits {
  readonly #held = new Map<string, readonly Permit[]>();
  readonly #random: Random;
  #next = 1;
  /** How many may still come before those that were lost meanwhile are looked for. */
  #sweepIn = SWEEP_EVERY_MIN;

  constructor(random: Random) {
    this.#random = random;
  }

  get size(): number {
    return this.#held.size;
  }

  /** A name for what is held for one call; undefined if there is nothing to settle, or no room. */
  add(permits: readonly Permit[]): string | undefined {
    if (permits.length === 0) return undefined;
    if (--this.#sweepIn <= 0) this.#sweep();
    if (this.#held.size >= PERMITS_MAX) {
      for (const permit of permits) permit.settle({ outcome: 'failed' });
      return undefined;
    }
    // So that nobody settles what is somebody else's by counting.
    const name = `${this.#next++}-${Math.floor(this.#random() * 2 ** 48).toString(36)}`;
    this.#held.set(name, permits);
    return name;
  }

  /** False if nobody holds it any more. @throws {ConfigError} if the result makes no sense. */
  settle(name: string, result: Result): boolean {
    const permits = this.#held.get(name);
    if (!permits) return false;
    const isHeld = permits.some((permit) => !permit.isSettled);
    for (const permit of permits) permit.settle(result);
    this.#held.delete(name);
    return isHeld;
  }

  #sweep(): void {
    for (const [name, permits] of this.#held) {
      if (permits.every((permit) => permit.isSettled)) this.#held.delete(name);
    }
    this.#sweepIn = Math.min(SWEEP_EVERY_MAX, Math.max(SWEEP_EVERY_MIN, this.#held.size));
  }
}
