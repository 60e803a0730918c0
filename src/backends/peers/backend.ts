/**
 * Peers: this process decides, from what it has served and what it has heard.
 *
 * A share that decides alone, and tells the fleet of every call it lets through; what others tell comes
 * in from the side and is taken off, below zero if need be. Denied calls are nobody's business.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { type Hasher, hasher } from '../../core/hash.ts';
import { fillNoSooner, fullInMs, spentOf } from '../../policies/bucket.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import type { ShareMaker, ShareSetting } from '../backend.ts';
import { ShareAround } from '../delegating-backend.ts';
import { LocalShare } from '../local/backend.ts';
import { Gained } from './credits.ts';
import type { PeerLimit } from './limits.ts';

/** What a share needs of its fleet. */
export interface Fleet {
  /** All of a fleet hash alike. */
  readonly hasher: Hasher;
  /** Takes on a limit. */
  join(limit: PeerLimit): void;
  /** Hears no more for a limit. What it served so far is told. */
  leave(limit: PeerLimit): void;
  /** A call was let through here. */
  served(limit: PeerLimit, low: number, high: number, hits: number): void;
  /** One did not happen after all. */
  unserved(limit: PeerLimit, low: number, high: number, hits: number): void;
}

export class PeersShare extends ShareAround<LocalShare> {
  readonly #fleet: Fleet;
  readonly #hasher: Hasher;
  readonly #limit: PeerLimit;
  readonly #gained = new Gained();
  #isAlone = false;

  /** @throws {ConfigError} if the rule can do nothing with what others served. */
  constructor(policy: Policy, { name, clock, random, keysMax }: ShareSetting, fleet: Fleet) {
    const buckets = bucketsOf(policy);
    const local = new LocalShare(policy, { clock, random, keysMax, hasher: fleet.hasher });
    super(local);
    this.#fleet = fleet;
    this.#hasher = fleet.hasher;
    const level = (state: State, i: number, now: Millis): number => spentOf(buckets, state, i, now);
    const standing = (state: State, i: number, now: Millis): Millis[] =>
      fullInMs(buckets, state, i, now).map(wholeMs);
    this.#limit = {
      id: limitId(name, policy),
      addsUp: buckets.length === 1 && buckets[0][2] === Infinity,
      hear: (low, high, hits, agoMs) => void local.hearHashed(low, high, { hits }, agoMs),
      buckets: buckets.length,
      stateFrom: (cursor, most) => {
        const { numbers: standings, next } = local.page(cursor, most, standing);
        return { standings, next };
      },
      raise: (low, high, spansMs, hits) =>
        local.changeHashed(low, high, (state, i, now) =>
          fillNoSooner(buckets, state, i, now, spansMs, hits),
        ),
      level: (low, high) => local.readHashed(low, high, level),
      move: (low, high, by) =>
        local.settleHashed(low, high, { outcome: 'ok', cost: 0, used: by, dueAt: 0 }),
    };
    fleet.join(this.#limit);
  }

  /** Goes on alone: from now on it neither tells nor hears. What it served so far is told. */
  override leave(): void {
    this.#isAlone = true;
    this.#fleet.leave(this.#limit);
  }

  override ask(key: string, cost: number, part?: number): Decision {
    return this.#told(this.inner.ask(key, cost, part), cost);
  }

  override askHashed(low: number, high: number, cost: number): Decision {
    const decision = this.inner.askHashed(low, high, cost);
    if (decision.verdict === 'allow') this.#served(low, high, cost);
    return decision;
  }

  override askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#told(this.inner.askNow(key, cost, now, part), cost);
  }

  override take(key: string, most: number): number {
    return this.spare(key, most, 0);
  }

  spare(key: string, most: number, leave: number): number {
    const taken = this.inner.spare(key, most, leave);
    if (taken > 0) this.#servedLast(taken);
    return taken;
  }

  gain(key: string, units: number, upTo: number): void {
    this.#hasher.hash(key);
    const { low, high } = this.#hasher;
    const before = this.#limit.level(low, high);
    this.inner.gain(key, units, upTo);
    const filled = before - this.#limit.level(low, high); // less, if not all of it fits
    if (filled > 0) this.#gained.add(low, high, filled);
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    this.inner.settle(key, settlement, now);
    const { outcome, cost, used = cost } = settlement;
    const more = outcome === 'ignored' ? -cost : used - cost;
    if (more > 0) this.#servedLast(more);
    else if (more < 0 && !this.#isAlone) {
      this.#fleet.unserved(this.#limit, this.#hasher.low, this.#hasher.high, -more);
    }
  }

  #told(decision: Decision, cost: number): Decision {
    if (decision.verdict === 'allow') this.#servedLast(cost);
    return decision;
  }

  /** The key is the one that was hashed last: a moment ago, to find its numbers. */
  #servedLast(hits: number): void {
    this.#served(this.#hasher.low, this.#hasher.high, hits);
  }

  #served(low: number, high: number, hits: number): void {
    if (this.#isAlone) return;
    const told = this.#gained.isEmpty ? hits : hits - this.#gained.use(low, high, hits);
    if (told > 0) this.#fleet.served(this.#limit, low, high, told);
  }
}

/** A fleet of nobody else, to see what a rule would be in one. */
export const alone: ShareMaker = {
  isRemote: false,
  make(policy, setting) {
    const fleet = { hasher: hasher([0, 0]), join() {}, leave() {}, served() {}, unserved() {} };
    return new PeersShare(policy, setting, fleet);
  },
};

/** The numbers of the buckets that a rule is made of. */
function bucketsOf({ kind, formulas }: Policy): readonly (readonly number[])[] {
  if (!formulas?.every((formula) => formula.kind === 'bucket')) {
    throw new ConfigError('limit', 'made of buckets when peers share it', kind);
  }
  return formulas.map(({ numbers }) => numbers);
}

/** The same rule under the same name is the same limit for all of the fleet; others are kept apart. */
function limitId(name: string, policy: Policy): number {
  const text = JSON.stringify([name, policy.formulas]);
  let hash = 0x811c9dc5;
  for (let n = 0; n < text.length; n++) hash = Math.imul(hash ^ text.charCodeAt(n), 0x01000193);
  return hash >>> 0;
}

/** Rounded so that nobody gains by being told; a whole number above 0 is short on the wire. */
const wholeMs = (ms: Millis): Millis => Math.min(Math.max(1, Math.ceil(ms)), Number.MAX_VALUE);
