/**
 * Permits that clients of the daemon hold, by an id that travels, until they settle.
 *
 * A limiter expires a permit that is held too long (`permitTimeout`), so a crashed client loses nothing.
 * Expired entries are removed here as new ones are added, so the registry stays near the number held.
 */

import type { Random } from '../../core/random.ts';
import type { Permit, PermitResult } from '../../limiter/permit.ts';

/** A permit of a limiter, or a batch. */
type HeldPermit = Pick<Permit, 'cost' | 'isSettled' | 'settle'>;

/** Beyond this number a call is allowed without a permit to settle. */
const MAX_PERMITS = 1_000_000;

/** Additions between two sweeps for expired permits. */
const MIN_SWEEP_EVERY = 1024;
const MAX_SWEEP_EVERY = 65_536;

export class PermitRegistry {
  readonly #outstanding = new Map<string, readonly HeldPermit[]>();
  readonly #random: Random;
  #nextId = 1;
  /** Additions before the next sweep. */
  #untilSweep = MIN_SWEEP_EVERY;

  constructor(random: Random) {
    this.#random = random;
  }

  /** Permits held, without expired ones. */
  get size(): number {
    this.#sweep();
    return this.#outstanding.size;
  }

  /** The id of one call's permits; undefined if there are none, or the registry is full. */
  add(permits: readonly HeldPermit[]): string | undefined {
    if (permits.length === 0) return undefined;
    if (--this.#untilSweep <= 0) this.#sweep();
    if (this.#outstanding.size >= MAX_PERMITS) {
      for (const permit of permits) permit.settle({ outcome: 'failed' });
      return undefined;
    }
    // The random part keeps clients from settling other clients' permits by counting.
    const id = `${this.#nextId++}-${Math.floor(this.#random() * 2 ** 48).toString(36)}`;
    this.#outstanding.set(id, permits);
    return id;
  }

  /** False if the permit is unknown, settled or expired. @throws {ConfigError} for an invalid result. */
  settle(id: string, result: PermitResult): boolean {
    const permits = this.#outstanding.get(id);
    if (!permits) return false;
    const isHeld = permits.some((permit) => !permit.isSettled);
    for (const permit of permits) permit.settle(result);
    this.#outstanding.delete(id);
    return isHeld;
  }

  /** Settles a permit of which so much was not used. False as for `settle`. */
  giveBack(id: string, unused: number): boolean {
    const [{ cost } = { cost: 0 }] = this.#outstanding.get(id) ?? [];
    return this.settle(id, unused < cost ? { used: cost - unused } : { outcome: 'ignored' });
  }

  #sweep(): void {
    for (const [id, permits] of this.#outstanding) {
      if (permits.every((permit) => permit.isSettled)) this.#outstanding.delete(id);
    }
    this.#untilSweep = Math.min(MAX_SWEEP_EVERY, Math.max(MIN_SWEEP_EVERY, this.#outstanding.size));
  }
}
