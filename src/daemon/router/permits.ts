/**
 * Permits that callers of the daemon hold: by a name that travels, until they settle.
 *
 * A limiter takes back what was held for too long (`permitTimeout`), so nothing is lost when a caller dies;
 * those are forgotten here as new ones come, so that there are few more than are out.
 */

import type { Random } from '../../core/random.ts';
import type { Permit } from '../../limiter/permit.ts';

/** Callers that hold more than this at once get no permit to settle with: they are let through. */
const MAX_PERMITS = 1_000_000;

/** So many come at least, and at most, between two looks for those that were lost. */
const SWEEP_EVERY_MIN = 1024;
const MAX_SWEEP_EVERY = 65_536;

type SettleResult = Parameters<Permit['settle']>[0];

export class PermitRegistry {
  readonly #outstanding = new Map<string, readonly Permit[]>();
  readonly #random: Random;
  #nextId = 1;
  /** How many may still come before those that were lost meanwhile are looked for. */
  #untilSweep = SWEEP_EVERY_MIN;

  constructor(random: Random) {
    this.#random = random;
  }

  get size(): number {
    return this.#outstanding.size;
  }

  /** A name for what is held for one call; undefined if there is nothing to settle, or no room. */
  add(permits: readonly Permit[]): string | undefined {
    if (permits.length === 0) return undefined;
    if (--this.#untilSweep <= 0) this.#sweep();
    if (this.#outstanding.size >= MAX_PERMITS) {
      for (const permit of permits) permit.settle({ outcome: 'failed' });
      return undefined;
    }
    // So that nobody settles what is somebody else's by counting.
    const name = `${this.#nextId++}-${Math.floor(this.#random() * 2 ** 48).toString(36)}`;
    this.#outstanding.set(name, permits);
    return name;
  }

  /** False if nobody holds it any more. @throws {ConfigError} if the result makes no sense. */
  settle(name: string, result: SettleResult): boolean {
    const permits = this.#outstanding.get(name);
    if (!permits) return false;
    const isHeld = permits.some((permit) => !permit.isSettled);
    for (const permit of permits) permit.settle(result);
    this.#outstanding.delete(name);
    return isHeld;
  }

  #sweep(): void {
    for (const [name, permits] of this.#outstanding) {
      if (permits.every((permit) => permit.isSettled)) this.#outstanding.delete(name);
    }
    this.#untilSweep = Math.min(MAX_SWEEP_EVERY, Math.max(SWEEP_EVERY_MIN, this.#outstanding.size));
  }
}
