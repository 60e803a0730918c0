/**
 * Whether a node that was suspended for longer than the peer timeout is catching up; it denies calls meanwhile.
 *
 *     suspended ──▶ rejoins ──┬▶ has the state of a peer, and `awaited` has settled ─▶ decides again
 *                             ├▶ receives no datagram for 1 s ───────────────────────▶ decides from its own count
 *                             └▶ after MAX_CATCH_UP_MS ──────────────────────────────▶ decides from its present state
 *
 * Its levels date from before the suspension, and its peers have dropped it: calls that it allowed by them would exceed
 * the limit. A starting node is in the same position, but its daemon does not listen yet.
 */

import type { Millis } from '../../core/clock.ts';

/** A node is alone if it finds no peers for this long after its start, or gets no datagram after a suspension. */
export const ALONE_AFTER_MS: Millis = 1000;

/** Equal to the time for which a starting daemon waits for the state of its peers. */
const MAX_CATCH_UP_MS: Millis = 5000;

export class CatchUp {
  #isActive = false;
  #startedAt: Millis = 0;
  #heardAt: Millis = 0;
  #hasState = false;
  /** A promise that it awaits besides the state; undefined when it has settled. */
  #awaited: Promise<unknown> | undefined;

  get isActive(): boolean {
    return this.#isActive;
  }

  /** Starts to catch up. Also waits for `awaited`, which may reject. */
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

  /** Must be called for every datagram: old ones waiting in a socket arrive before the replies of peers. */
  onDatagram(now: Millis): void {
    this.#heardAt = now;
  }

  /** Must be called when the state of a peer has been received. */
  onState(): void {
    this.#hasState = true;
    this.#endIfComplete();
  }

  /** Must be called at least every second. */
  tick(now: Millis, isTransferring: boolean): void {
    const isAlone = now - this.#heardAt >= ALONE_AFTER_MS && !isTransferring;
    if (isAlone || now - this.#startedAt >= MAX_CATCH_UP_MS) this.#isActive = false;
  }

  #endIfComplete(): void {
    if (this.#hasState && this.#awaited === undefined) this.#isActive = false;
  }
}
