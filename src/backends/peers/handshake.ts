/**
 * Proof of presence: a new node gets a `hello` with a fresh nonce and must return it. A replayed datagram cannot
 * contain the nonce, so it proves nothing.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { BROADCAST, type NodeId, random48 } from './messages.ts';
import type { Requester } from './response-limiter.ts';

/** The most nodes that have not replied to their `hello` yet. */
const MAX_PENDING_HANDSHAKES = 1024;

/** Minimum interval between two `hello` messages to one node. */
const HELLO_INTERVAL_MS: Millis = 50;

/** Minimum interval for a node without a common wire version, which only has to detect that. */
const INCOMPATIBLE_HELLO_INTERVAL_MS: Millis = 1000;

interface PendingHandshake extends Requester {
  nonce: number;
  nonceValidUntil: Millis;
  helloAt: Millis;
  helloIntervalMs: Millis;
}

export class PendingHandshakes {
  readonly #random: Random;
  readonly #nonceLifetimeMs: Millis;
  readonly #pending = new Map<NodeId, PendingHandshake>();

  /** `nonceLifetimeMs` is shorter than a peer is remembered, so that no `hello-ack` admits a node twice. */
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
    const times = { nonceValidUntil: -Infinity, helloAt: -Infinity, replyBudgetUntil: -Infinity };
    const handshake = { nonce: 0, helloIntervalMs: HELLO_INTERVAL_MS, ...times };
    this.#pending.set(id, handshake);
    return handshake;
  }

  /** Returns the nonce for the `hello` that is sent now. */
  issueNonce(id: NodeId, now: Millis): number {
    const handshake = this.getOrCreate(id);
    if (now >= handshake.nonceValidUntil) {
      handshake.nonce = random48(this.#random);
      handshake.nonceValidUntil = now + this.#nonceLifetimeMs;
    }
    handshake.helloAt = now + handshake.helloIntervalMs;
    return handshake.nonce;
  }

  /** Marks a node without a common wire version: it gets a `hello` only rarely. */
  markIncompatible(id: NodeId): void {
    this.getOrCreate(id).helloIntervalMs = INCOMPATIBLE_HELLO_INTERVAL_MS;
  }

  /** Whether the nonce is the one that was sent to this node or broadcast. */
  isValidReply(id: NodeId, nonce: number, now: Millis): boolean {
    const matches = (handshake: PendingHandshake | undefined): boolean =>
      handshake?.nonce === nonce && now < handshake.nonceValidUntil;
    return matches(this.#pending.get(id)) || matches(this.#pending.get(BROADCAST));
  }

  remove(id: NodeId): void {
    this.#pending.delete(id);
  }

  clear(): void {
    this.#pending.clear();
  }
}
