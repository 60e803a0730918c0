/**
 * Whether a node that was suspended for longer than the peer timeout is catching up: it refuses calls meanwhile.
 *
 *     suspended ──▶ rejoins ──┬▶ has the state of a peer, and what else it waits for ──▶ decides again
 *                             ├▶ gets no datagram for a second ─────────────────────────▶ decides from its own count
 *                             └▶ after MAX_CATCH_UP_MS ─────────────────────────────────▶ decides from what it has
 *
 * Its levels are as old as the suspension, and its peers have dropped it: calls that it admitted by them would be calls
 * beyond the limit. A node that starts is in the same position, and its daemon does not listen yet.
 */

import type { Millis } from '../../core/clock.ts';

/** A node that finds no peers for this long after its start is alone, and so is one that gets no datagram after a suspension. */
export const ALONE_AFTER_MS: Millis = 1000;

/** As long as a starting daemon waits for the state of its peers. */
const MAX_CATCH_UP_MS: Millis = 5000;

export class CatchUp {
  #isActive = false;
  #startedAt: Millis = 0;
  #heardAt: Millis = 0;
  #hasState = false;
  /** What it waits for besides the state; undefined once that is there. */
  #awaited: Promise<unknown> | undefined;

  get isActive(): boolean {
    return this.#isActive;
  }

  /** Also waits for `awaited`, which may be rejected. */
  begin(now: Millis, awaited?: Promise<unknown>): void {
    this.#isActive = true;
    this.#startedAt = now;
    this.#heardAt = now;
    this.#hasState = false;
    this.#awaited = awaited;
    const onSettled = (): void => {
      if (this.#awaited !== awaited) return; // suspended again
      this.#awaited = undefined;
      this.#endIfComplete();
    };
    awaited?.then(onSettled, onSettled);
  }

  /** To be called for a datagram: old ones that have waited in a socket come before the replies of peers. */
  onDatagram(now: Millis): void {
    this.#heardAt = now;
  }

  /** To be called when the state of a peer is here. */
  onState(): void {
    this.#hasState = true;
    this.#endIfComplete();
  }

  /** To be called at least every second. */
  tick(now: Millis, isTransferring: boolean): void {
    const isAlone = now - this.#heardAt >= ALONE_AFTER_MS && !isTransferring;
    if (isAlone || now - this.#startedAt >= MAX_CATCH_UP_MS) this.#isActive = false;
  }

  #endIfComplete(): void {
    if (this.#hasState && this.#awaited === undefined) this.#isActive = false;
  }
}
