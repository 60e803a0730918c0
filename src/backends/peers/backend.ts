/**
 * Peers: this process decides from its own hits and the hits that peers report.
 *
 * It delegates to a local backend and reports every allowed call to the fleet. Remote hits are subtracted when they
 * arrive, below zero if necessary (debt). Denied calls are not reported. `lockout-backend.ts` adds lock-out events.
 */

import type { Millis } from '../../core/clock.ts';
import { type Decision, NEVER } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import type { Hasher } from '../../core/hash.ts';
import { LOCKOUT_FIGURES } from '../../policies/lockout-sharing.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { specsOf } from '../../policies/rules.ts';
import type { BackendContext, CheckWithStatus } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { LocalBackend } from '../local/backend.ts';
import { keysPerPage } from './codec.ts';
import { ImportedCredits } from './credits.ts';
import type { PeerLimit } from './limits.ts';
import type { PeerNode } from './node.ts';
import { type SharedLevels, sharedLevelsOf } from './shared-levels.ts';

type Refusal = Extract<Decision, { verdict: 'deny' }>;

/** The members of the node that a limit uses. */
export type PeerNetwork = Pick<
  PeerNode,
  | 'hasher'
  | 'addLimit'
  | 'removeLimit'
  | 'recordHits'
  | 'retractHits'
  | 'msUntilReleased'
  | 'isCatchingUp'
>;

/** Denial while the node catches up after a suspension: the call may be allowed soon. */
const JOINING_REFUSAL: Decision = { verdict: 'deny', retryAfterMs: 100, reason: 'joining' };

export class PeersBackend extends DelegatingBackend<LocalBackend> {
  override readonly needsKeyNames = false;
  readonly #network: PeerNetwork;
  readonly #hasher: Hasher;
  readonly #name: string;
  #limit: PeerLimit;
  /** The level that overuse can reach: use beyond the cost. */
  #maxLevel = 0;
  /** The level at which no units remain. */
  #capacity = 0;
  /** False if no rule of the limit counts hits of peers. */
  #countsHits = true;
  readonly #importedCredits = new ImportedCredits();
  #isDetached = false;

  /** @throws {ConfigError} if the policy cannot subtract remote hits. */
  constructor(
    policy: Policy,
    { name, clock, random, maxKeys }: BackendContext,
    network: PeerNetwork,
  ) {
    levelsOf(policy);
    super(new LocalBackend(policy, { clock, random, maxKeys, hasher: network.hasher }));
    this.#name = name;
    this.#network = network;
    this.#hasher = network.hasher;
    this.#limit = this.#join(policy);
  }

  /** Starts sharing the limit under its rule. */
  #join(policy: Policy): PeerLimit {
    const local = this.inner;
    const levels = levelsOf(policy);
    this.#maxLevel = levels.maxLevel;
    this.#capacity = levels.capacity;
    this.#countsHits = levels.countsHits;
    const level = levels.level.bind(levels);
    const refillTimesOf = (state: State, i: number, now: Millis): Millis[] =>
      levels.timesToFull(state, i, now).map(ceilMs);
    const limit: PeerLimit = {
      id: limitId(this.#name, policy),
      isAdditive: levels.isAdditive,
      isCompared: levels.isCompared,
      applyRemoteHits: (low, high, hits, agoMs) => {
        if (levels.addHits)
          local.changeHashed(low, high, (s, i, then) => levels.addHits?.(s, i, hits, then), agoMs);
        else local.updateHashed(low, high, { hits }, agoMs);
      },
      buckets: levels.numbers,
      readPage: (cursor, maxKeysPerPage) => {
        const { values: refillTimes, next } = local.scan(cursor, maxKeysPerPage, refillTimesOf);
        return { refillTimes, next };
      },
      raiseLevel: (low, high, fullInMs, uncounted) =>
        local.changeHashed(low, high, (state, i, now) =>
          levels.raise(state, i, now, fullInMs, uncounted),
        ),
      level: (low, high) => local.readHashed(low, high, level),
      adjustLevel: (low, high, by) => {
        if (by > 0) local.updateHashed(low, high, { hits: by }, 0);
        else if (levels.lower)
          local.changeHashed(low, high, (state, i, now) => levels.lower?.(state, i, -by, now));
        else local.settleHashed(low, high, { outcome: 'ok', cost: 0, used: by, dueAt: 0 });
      },
    };
    this.#network.addLimit(limit);
    return limit;
  }

  /** Hits of nodes that still have the old rule do not count here: a limit's id contains its rule. */
  prepareChange(policy: Policy): (() => void) | undefined {
    const change = this.inner.prepareChange(policy);
    if (!change) return undefined;
    return () => {
      change();
      if (this.#isDetached) return;
      this.#network.removeLimit(this.#limit);
      this.#limit = this.#join(policy);
    };
  }

  /** Continues as a local backend. Hits recorded before are still reported. */
  override detach(): void {
    this.#isDetached = true;
    this.#network.removeLimit(this.#limit);
    super.detach();
  }

  /** True if the levels here date from before a suspension that has just ended. */
  get #isOutdated(): boolean {
    return this.#network.isCatchingUp() && !this.#isDetached;
  }

  override check(key: string, cost: number, partitionIndex?: number): Decision {
    if (this.#isOutdated) return JOINING_REFUSAL;
    return this.#recordIfAllowed(this.inner.check(key, cost, partitionIndex), cost);
  }

  override checkHashed(low: number, high: number, cost: number): Decision {
    if (this.#isOutdated) return JOINING_REFUSAL;
    return this.#recordHashed(this.inner.checkHashed(low, high, cost), low, high, cost);
  }

  override checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    if (this.#isOutdated) return undefined; // `check` denies
    const checked = this.inner.checkWithStatus(low, high, cost);
    if (!checked) return undefined;
    const decision = this.#recordHashed(checked.decision, low, high, cost);
    return decision === checked.decision ? checked : { ...checked, decision };
  }

  override checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    if (this.#isOutdated) return JOINING_REFUSAL;
    return this.#recordIfAllowed(this.inner.checkNow(key, cost, now, partitionIndex), cost);
  }

  override peek(key: string, cost: number, partitionIndex?: number): Decision {
    return this.#isOutdated ? JOINING_REFUSAL : this.inner.peek(key, cost, partitionIndex);
  }

  override takeUpTo(key: string, most: number): number {
    if (this.#isOutdated) return 0;
    return this.#recordTaken(this.inner.takeUpTo(key, most));
  }

  takeSurplus(key: string, most: number, leave: number): number {
    if (this.#isOutdated) return 0;
    return this.#recordTaken(this.inner.takeSurplus(key, most, leave));
  }

  #recordTaken(taken: number): number {
    if (taken > 0) this.#recordHitsOfLastKey(taken);
    return taken;
  }

  credit(key: string, tokens: number, upTo: number): void {
    const before = this.#levelOf(key);
    const { low, high } = this.#hasher;
    this.inner.credit(key, tokens, upTo);
    const filled = before - this.#limit.level(low, high); // less than `tokens` if the bucket was nearly full
    if (filled > 0) this.#importedCredits.add(low, high, filled);
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    const { outcome, cost, used = cost } = settlement;
    const extra = outcome === 'ignored' ? -cost : used - cost;
    const before = extra > 0 ? this.#levelOf(key) : 0;
    this.inner.settle(key, settlement, now);
    const { low, high } = this.#hasher; // the inner backend has just hashed the key
    if (extra > 0) this.#recordHits(low, high, Math.min(extra, this.#maxLevel - before));
    else if (extra < 0 && !this.#isDetached)
      this.#network.retractHits(this.#limit, low, high, -extra);
  }

  #levelOf(key: string): number {
    this.#hasher.hash(key);
    return this.#limit.level(this.#hasher.low, this.#hasher.high);
  }

  #recordIfAllowed(decision: Decision, cost: number): Decision {
    return this.#recordHashed(decision, this.#hasher.low, this.#hasher.high, cost);
  }

  #recordHashed(decision: Decision, low: number, high: number, cost: number): Decision {
    if (decision.verdict === 'allow') this.#recordHits(low, high, cost);
    else if (decision.verdict === 'deny') return this.#untilReleased(decision, low, high, cost);
    return decision;
  }

  /** A denial that only predicted hits cause ends when they are released, earlier than the rule's retry time. */
  #untilReleased(refusal: Refusal, low: number, high: number, cost: number): Refusal {
    if (!this.#limit.isAdditive || refusal.retryAfterMs === NEVER) return refusal;
    const missing = this.#limit.level(low, high) + cost - this.#capacity;
    const ms = this.#network.msUntilReleased(this.#limit, low, high, missing);
    return ms < refusal.retryAfterMs ? { ...refusal, retryAfterMs: ms } : refusal;
  }

  /** Uses the hasher's last key: the inner backend has just hashed it. */
  #recordHitsOfLastKey(hits: number): void {
    this.#recordHits(this.#hasher.low, this.#hasher.high, hits);
  }

  #recordHits(low: number, high: number, hits: number): void {
    if (this.#isDetached || !this.#countsHits) return;
    const reported = this.#importedCredits.isEmpty
      ? hits
      : hits - this.#importedCredits.consume(low, high, hits);
    if (reported > 0) this.#network.recordHits(this.#limit, low, high, reported);
  }
}

function levelsOf(policy: Policy): SharedLevels {
  const levels = sharedLevelsOf(policy);
  if (!levels) {
    const expected =
      'made of bucket, window or lockout when `peers` shares it: reports arrive late, and only these keep what was overused (other rules: Redis, etcd or a pool)';
    throw new ConfigError('limit', expected, policy.kind);
  }
  if (keysPerPage(levels.numbers) > 0) return levels;
  const expected = `fewer rules when \`peers\` shares it: a lockout counts as ${LOCKOUT_FIGURES} of them`;
  throw new ConfigError('limit', expected, `${levels.numbers} numbers for each key`);
}

/** The limit's id: equal names and rules give equal ids on every node (FNV-1a). A lock-out's channels have own ids. */
export function limitId(name: string, policy: Policy, ...channel: readonly string[]): number {
  const text = JSON.stringify([name, specsOf(policy), ...channel]);
  let hash = 0x811c9dc5;
  for (let n = 0; n < text.length; n++) hash = Math.imul(hash ^ text.charCodeAt(n), 0x01000193);
  return hash >>> 0;
}

/** Rounds up, so that a state transfer never adds tokens; a positive integer is short on the wire. */
const ceilMs = (ms: Millis): Millis => Math.min(Math.max(1, Math.ceil(ms)), Number.MAX_VALUE);
