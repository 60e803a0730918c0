/**
 * Which peers are back after a silence, and since when each was silent: one of them, or this daemon, was suspended or cut
 * off, so both may lack what was set meanwhile.
 */

import type { Millis } from '../../core/clock.ts';

/** Peers that are remembered; beyond this, those seen least recently are forgotten. */
const MAX_PEERS = 4096;

/** A peer that is not listed for this long was silent. It is looked for every second. */
const MIN_SILENCE_MS: Millis = 3000;

export class ReturnedPeers {
  /** When each peer was last alive, by id; the most recent last. */
  readonly #seenAt = new Map<number, Millis>();
  readonly #silentSince = new Map<number, Millis>();
  /** Peers that have sent controls. Other nodes of the fleet are perhaps no daemons. */
  readonly #daemons = new Set<number>();

  get isEmpty(): boolean {
    return this.#silentSince.size === 0;
  }

  /** To be called every second with the peers that are alive. */
  update(alive: readonly number[], now: Millis): void {
    for (const id of alive) {
      const seenAt = this.#seenAt.get(id) ?? now;
      if (now - seenAt >= MIN_SILENCE_MS) this.#silentSince.set(id, seenAt);
      this.#seenAt.delete(id);
      this.#seenAt.set(id, now);
    }
    for (const [id] of this.#seenAt) {
      if (this.#seenAt.size <= MAX_PEERS) return;
      for (const ids of [this.#seenAt, this.#silentSince, this.#daemons]) ids.delete(id);
    }
  }

  /** To be called for every peer that has sent controls. */
  noteDaemon(id: number): void {
    if (this.#seenAt.has(id)) this.#daemons.add(id);
  }

  /** Removes and returns them as pairs of id and start of the silence, daemons first. */
  take(): readonly (readonly [id: number, silentSince: Millis])[] {
    const taken = [...this.#silentSince];
    this.#silentSince.clear();
    const isDaemon = ([id]: readonly [number, Millis]): boolean => this.#daemons.has(id);
    return [...taken.filter(isDaemon), ...taken.filter((entry) => !isDaemon(entry))];
  }
}
