/**
 * Proof of presence: a node that is heard for the first time is asked with a number made for it, and is
 * there if it answers with that. What somebody recorded earlier and sends again proves nothing.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { BROADCAST, type NodeId, random48 } from './messages.ts';
import type { Requester } from './response-limiter.ts';

/** Strangers that were asked to prove that they are there, and have not yet. */
const MAX_PENDING_HANDSHAKES = 1024;

/** How often a stranger is asked. */
const HELLO_INTERVAL_MS: Millis = 50;

interface PendingHandshake extends Requester {
  nonce: number;
  /** Until when an answer to it proves anything. */
  nonceValidUntil: Millis;
  helloAt: Millis;
}

export class PendingHandshakes {
  readonly #random: Random;
  /** A nonce is good for so long. */
  readonly #nonceLifetimeMs: Millis;
  readonly #pending = new Map<NodeId, PendingHandshake>();

  /**
   * `nonceLifetimeMs` is less than anybody is remembered for: an answer that has let somebody in never lets it in
   * again.
   */
  constructor(random: Random, nonceLifetimeMs: Millis) {
    this.#random = random;
    this.#nonceLifetimeMs = nonceLifetimeMs;
  }

  getOrCreate(id: NodeId): PendingHandshake {
    const known = this.#pending.get(id);
    if (known) return known;
    if (this.#pending.size >= MAX_PENDING_HANDSHAKES) {
      const [oldest] = this.#pending.keys();
      this.#pending.delete(oldest);
    }
    const handshake = {
      nonce: 0,
      nonceValidUntil: -Infinity,
      helloAt: -Infinity,
      replyBudgetUntil: -Infinity,
    };
    this.#pending.set(id, handshake);
    return handshake;
  }

  /** A number that only whoever is there can answer, to ask with now. */
  issueNonce(id: NodeId, now: Millis): number {
    const handshake = this.getOrCreate(id);
    if (now >= handshake.nonceValidUntil) {
      handshake.nonce = random48(this.#random);
      handshake.nonceValidUntil = now + this.#nonceLifetimeMs;
    }
    handshake.helloAt = now + HELLO_INTERVAL_MS;
    return handshake.nonce;
  }

  /** Whether this answers what it was asked, or what everybody was. */
  isValidReply(id: NodeId, nonce: number, now: Millis): boolean {
    const isIt = (own: PendingHandshake | undefined): boolean =>
      own?.nonce === nonce && now < own.nonceValidUntil;
    return isIt(this.#pending.get(id)) || isIt(this.#pending.get(BROADCAST));
  }

  remove(id: NodeId): void {
    this.#pending.delete(id);
  }

  /** Nothing that was asked so far proves anything any more. */
  clear(): void {
    this.#pending.clear();
  }
}
