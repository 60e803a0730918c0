/**
 * Proof of presence: a node that is heard for the first time is asked with a number made for it, and is
 * there if it answers with that. What somebody recorded earlier and sends again proves nothing.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { ALL, freshNumber, type NodeId } from './messages.ts';
import type { Asker } from './response-limiter.ts';

/** Strangers that were asked to prove that they are there, and have not yet. */
const STRANGERS_MAX = 1024;

/** How often a stranger is asked. */
const ASK_AGAIN_MS: Millis = 50;

interface Stranger extends Asker {
  nonce: number;
  /** Until when an answer to it proves anything. */
  nonceTo: Millis;
  askAt: Millis;
}

export class Strangers {
  readonly #random: Random;
  /** A nonce is good for so long. */
  readonly #goodMs: Millis;
  readonly #strangers = new Map<NodeId, Stranger>();

  /**
   * `goodMs` is less than anybody is remembered for: an answer that has let somebody in never lets it in
   * again.
   */
  constructor(random: Random, goodMs: Millis) {
    this.#random = random;
    this.#goodMs = goodMs;
  }

  get(id: NodeId): Stranger {
    const known = this.#strangers.get(id);
    if (known) return known;
    if (this.#strangers.size >= STRANGERS_MAX) {
      const [oldest] = this.#strangers.keys();
      this.#strangers.delete(oldest);
    }
    const stranger = { nonce: 0, nonceTo: -Infinity, askAt: -Infinity, answeredTo: -Infinity };
    this.#strangers.set(id, stranger);
    return stranger;
  }

  /** A number that only whoever is there can answer, to ask with now. */
  nonceFor(id: NodeId, now: Millis): number {
    const stranger = this.get(id);
    if (now >= stranger.nonceTo) {
      stranger.nonce = freshNumber(this.#random);
      stranger.nonceTo = now + this.#goodMs;
    }
    stranger.askAt = now + ASK_AGAIN_MS;
    return stranger.nonce;
  }

  /** Whether this answers what it was asked, or what everybody was. */
  hasProved(id: NodeId, nonce: number, now: Millis): boolean {
    const isIt = (own: Stranger | undefined): boolean => own?.nonce === nonce && now < own.nonceTo;
    return isIt(this.#strangers.get(id)) || isIt(this.#strangers.get(ALL));
  }

  forget(id: NodeId): void {
    this.#strangers.delete(id);
  }

  /** Nothing that was asked so far proves anything any more. */
  clear(): void {
    this.#strangers.clear();
  }
}
