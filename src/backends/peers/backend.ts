/**
 * Peers: this process decides, from what it has served and what it has heard.
 *
 * A share that decides alone, and tells the fleet of every call it lets through; what others tell comes
 * in from the side and is taken off, below zero if need be. Denied calls are nobody's business.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { createHasher, type Hasher } from '../../core/hash.ts';
import type { BucketTerms, Policy, Settlement, State } from '../../policies/policy.ts';
import type { BackendContext, BackendFactory } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { LocalBackend } from '../local/backend.ts';
import { bindingLevel, raiseLevels, timeToFull } from './bucket-levels.ts';
import { ImportedCredits } from './credits.ts';
import type { PeerLimit } from './limits.ts';

/** What a share needs of its fleet. */
export interface PeerNetwork {
  /** All of a fleet hash alike. */
  readonly hasher: Hasher;
  /** Takes on a limit. */
  addLimit(limit: PeerLimit): void;
  /** Hears no more for a limit. What it served so far is told. */
  removeLimit(limit: PeerLimit): void;
  /** A call was let through here. */
  recordHits(limit: PeerLimit, low: number, high: number, hits: number): void;
  /** One did not happen after all. */
  retractHits(limit: PeerLimit, low: number, high: number, hits: number): void;
}

export class PeersBackend extends DelegatingBackend<LocalBackend> {
  readonly #network: PeerNetwork;
  readonly #hasher: Hasher;
  readonly #limit: PeerLimit;
  readonly #importedCredits = new ImportedCredits();
  #isDetached = false;

  /** @throws {ConfigError} if the rule can do nothing with what others served. */
  constructor(
    policy: Policy,
    { name, clock, random, maxKeys }: BackendContext,
    network: PeerNetwork,
  ) {
    const buckets = bucketsOf(policy);
    const local = new LocalBackend(policy, { clock, random, maxKeys, hasher: network.hasher });
    super(local);
    this.#network = network;
    this.#hasher = network.hasher;
    const level = (state: State, i: number, now: Millis): number =>
      bindingLevel(buckets, state, i, now);
    const refillTimesOf = (state: State, i: number, now: Millis): Millis[] =>
      timeToFull(buckets, state, i, now).map(ceilMs);
    this.#limit = {
      id: limitId(name, policy),
      isAdditive: buckets.length === 1 && buckets[0].maxDebt === Infinity,
      applyRemoteHits: (low, high, hits, agoMs) =>
        void local.updateHashed(low, high, { hits }, agoMs),
      buckets: buckets.length,
      readPage: (cursor, most) => {
        const { values: refillTimes, next } = local.scan(cursor, most, refillTimesOf);
        return { refillTimes, next };
      },
      raiseLevel: (low, high, spansMs, hits) =>
        local.changeHashed(low, high, (state, i, now) =>
          raiseLevels(buckets, state, i, now, spansMs, hits),
        ),
      level: (low, high) => local.readHashed(low, high, level),
      adjustLevel: (low, high, by) =>
        local.settleHashed(low, high, { outcome: 'ok', cost: 0, used: by, dueAt: 0 }),
    };
    network.addLimit(this.#limit);
  }

  /** Goes on alone: from now on it neither tells nor hears. What it served so far is told. */
  override detach(): void {
    this.#isDetached = true;
    this.#network.removeLimit(this.#limit);
  }

  override check(key: string, cost: number, part?: number): Decision {
    return this.#recordIfAllowed(this.inner.check(key, cost, part), cost);
  }

  override checkHashed(low: number, high: number, cost: number): Decision {
    const decision = this.inner.checkHashed(low, high, cost);
    if (decision.verdict === 'allow') this.#recordHits(low, high, cost);
    return decision;
  }

  override checkNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#recordIfAllowed(this.inner.checkNow(key, cost, now, part), cost);
  }

  override takeUpTo(key: string, most: number): number {
    return this.takeSurplus(key, most, 0);
  }

  takeSurplus(key: string, most: number, leave: number): number {
    const taken = this.inner.takeSurplus(key, most, leave);
    if (taken > 0) this.#recordHitsOfLastKey(taken);
    return taken;
  }

  credit(key: string, units: number, upTo: number): void {
    this.#hasher.hash(key);
    const { low, high } = this.#hasher;
    const before = this.#limit.level(low, high);
    this.inner.credit(key, units, upTo);
    const filled = before - this.#limit.level(low, high); // less, if not all of it fits
    if (filled > 0) this.#importedCredits.add(low, high, filled);
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    this.inner.settle(key, settlement, now);
    const { outcome, cost, used = cost } = settlement;
    const more = outcome === 'ignored' ? -cost : used - cost;
    if (more > 0) this.#recordHitsOfLastKey(more);
    else if (more < 0 && !this.#isDetached) {
      this.#network.retractHits(this.#limit, this.#hasher.low, this.#hasher.high, -more);
    }
  }

  #recordIfAllowed(decision: Decision, cost: number): Decision {
    if (decision.verdict === 'allow') this.#recordHitsOfLastKey(cost);
    return decision;
  }

  /** The key is the one that was hashed last: a moment ago, to find its numbers. */
  #recordHitsOfLastKey(hits: number): void {
    this.#recordHits(this.#hasher.low, this.#hasher.high, hits);
  }

  #recordHits(low: number, high: number, hits: number): void {
    if (this.#isDetached) return;
    const told = this.#importedCredits.isEmpty
      ? hits
      : hits - this.#importedCredits.consume(low, high, hits);
    if (told > 0) this.#network.recordHits(this.#limit, low, high, told);
  }
}

/** Until its last users outside this folder follow. */
export { PeersBackend as PeersShare };

/** A fleet of nobody else, to see what a rule would be in one. */
export const dryRunPeers: BackendFactory = {
  isRemote: false,
  create(policy, context) {
    const network = {
      hasher: createHasher([0, 0]),
      addLimit() {},
      removeLimit() {},
      recordHits() {},
      retractHits() {},
    };
    return new PeersBackend(policy, context, network);
  },
};

/** The numbers of the buckets that a rule is made of. */
function bucketsOf({ kind, buckets }: Policy): readonly BucketTerms[] {
  if (!buckets) throw new ConfigError('limit', 'made of buckets when peers share it', kind);
  return buckets;
}

/** The same rule under the same name is the same limit for all of the fleet; others are kept apart. */
function limitId(name: string, policy: Policy): number {
  const text = JSON.stringify([name, policy.specs]);
  let hash = 0x811c9dc5;
  for (let n = 0; n < text.length; n++) hash = Math.imul(hash ^ text.charCodeAt(n), 0x01000193);
  return hash >>> 0;
}

/** Rounded so that nobody gains by being told; a whole number above 0 is short on the wire. */
const ceilMs = (ms: Millis): Millis => Math.min(Math.max(1, Math.ceil(ms)), Number.MAX_VALUE);
