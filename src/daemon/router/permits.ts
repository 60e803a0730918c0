/**
 * A limiter expires a permit that is held too long (`permitTimeout`), so a crashed client loses nothing. A clock hand
 * moves over a few permits with every new one and removes those that have expired.
 *
 * The registry is bounded by the memory of its permits: a client chooses how many it holds, and how long their keys are.
 * When it is full, a call that wants a permit is refused as unavailable. Allowed without one, it would never be counted
 * by a limit on calls in flight.
 */

import { type Random, secretRandom } from '../../core/random.ts';
import type { Permit, PermitResult } from '../../limiter/permit.ts';
import { MEMORY } from '../config/memory.ts';

/** A permit of a limiter, or a batch. */
type HeldPermit = Pick<Permit, 'cost' | 'isSettled' | 'settle'>;

/** Measured memory of a call's permit without the key, and of each of its limits. */
const BYTES_PER_PERMIT = 768;
const BYTES_PER_LIMIT = 800;

/** Permits that the clock hand visits with every new one, and when the number is read. */
const SWEEP_STEPS = 4;
const MAX_COUNTING_STEPS = 16_384;

/** The permits of one call. */
interface Holding {
  readonly permits: readonly HeldPermit[];
  readonly bytes: number;
}

/** The approximate memory of a permit of `limits` limits. */
export const permitBytes = (key: string, limits: number): number =>
  key.length + BYTES_PER_PERMIT + limits * BYTES_PER_LIMIT;

export class PermitRegistry {
  /** Calls refused because the registry was full. */
  refused = 0;
  readonly #outstanding = new Map<string, Holding>();
  readonly #random: Random;
  readonly #maxBytes: number;
  #bytes = 0;
  #nextId = 1;
  #clockHand = this.#outstanding.entries();

  constructor(random: Random, maxBytes: number = MEMORY.permits) {
    this.#random = secretRandom(random);
    this.#maxBytes = maxBytes;
  }

  /** Permits held; if there are many, expired ones may be among them. */
  get size(): number {
    this.#clockHand = this.#outstanding.entries(); // the oldest first
    this.#sweep(MAX_COUNTING_STEPS);
    return this.#outstanding.size;
  }

  /** The id of one call's permits. Undefined if the registry is full: then they are returned as if never taken. */
  add(permits: readonly HeldPermit[], bytes: number): string | undefined {
    this.#sweep(SWEEP_STEPS);
    if (this.#bytes + bytes > this.#maxBytes) {
      this.refused++;
      for (const permit of permits) permit.settle({ outcome: 'ignored' });
      return undefined;
    }
    this.#bytes += bytes;
    // 52 secret bits keep clients from settling other clients' permits.
    const id = `${this.#nextId++}-${Math.floor(this.#random() * 2 ** 52).toString(36)}`;
    this.#outstanding.set(id, { permits, bytes });
    return id;
  }

  /** False if the permit is unknown, settled or expired. @throws {ConfigError} for an invalid result. */
  settle(id: string, result: PermitResult): boolean {
    const holding = this.#outstanding.get(id);
    if (!holding) return false;
    const isHeld = holding.permits.some((permit) => !permit.isSettled);
    for (const permit of holding.permits) permit.settle(result);
    this.#remove(id, holding);
    return isHeld;
  }

  /** Settles a permit of which `unused` was not used. False as for `settle`. */
  giveBack(id: string, unused: number): boolean {
    const [{ cost } = { cost: 0 }] = this.#outstanding.get(id)?.permits ?? [];
    return this.settle(id, unused < cost ? { used: cost - unused } : { outcome: 'ignored' });
  }

  #remove(id: string, { bytes }: Holding): void {
    if (this.#outstanding.delete(id)) this.#bytes -= bytes;
  }

  /** Moves the clock hand over `steps` permits, at most to the last one. */
  #sweep(steps: number): void {
    for (let n = 0; n < steps; n++) {
      const { done, value } = this.#clockHand.next();
      if (done) {
        this.#clockHand = this.#outstanding.entries();
        return;
      }
      const [id, holding] = value;
      if (holding.permits.every((permit) => permit.isSettled)) this.#remove(id, holding);
    }
  }
}
