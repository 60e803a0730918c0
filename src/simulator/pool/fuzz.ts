/**
 * Fuzz test of the pool agreement on virtual time: at no instant may the parts add up to more than the limit.
 *
 * Members join, sync, leave, crash and are suspended. Requests and responses are delayed, lost or reordered. The store
 * is unavailable for all members or for one, or loses its state. Clocks are wrong by up to an hour. Runs are seeded.
 */

import {
  type AgreementOptions,
  applyLeave,
  applySync,
  type Claim,
  createPoolState,
  NO_CLAIM,
  type PoolState,
  type SyncResponse,
} from '../../backends/pool/agreement.ts';
import { PoolMember } from '../../backends/pool/member.ts';
import type { Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { memberQuota } from '../../policies/ramp.ts';

export interface FuzzOptions {
  readonly seed: number;
  readonly steps: number;
  /** True if members stop using their part before the store drops them. */
  readonly isStrict: boolean;
}

export interface FuzzResult {
  /** Overshoots: when, how much, of which limit. */
  readonly overshoots: readonly string[];
  /** True if, after a quiet period, all members agreed and the whole limit was in use. */
  readonly isFullyUsed: boolean;
}

/** Longer and shorter than the 1 s that parts refer to. */
const MEMBER_TIMEOUTS_MS: readonly Millis[] = [2000, 600];
const STALE_FOR_MS: Millis = 10_000;
/** Long enough to drop the last crashed member and to agree, plus up to 1 s. */
const QUIESCENT_MS: Millis = 6500;

const MIN_SYNC_MS: Millis = 80;
const MAX_MEMBERS = 7;
const HOUR_MS: Millis = 3_600_000;

/** Limits whose remainders differ. */
const LIMITS = [1, 3, 5, 8, 100] as const;

interface PoolUser {
  readonly name: string;
  readonly member: PoolMember;
  /** Error of its clock. */
  readonly skewMs: Millis;
}

interface FuzzedNode extends PoolUser {
  syncAt: Millis;
  /** Without a connection to the store until this time. */
  isolatedUntil: Millis;
  /** Suspended until this time: it neither uses its part nor handles messages. */
  suspendedUntil: Millis;
}

interface PendingMessage {
  readonly at: Millis;
  readonly deliver: () => void;
}

export function fuzzPool({ seed, steps, isStrict }: FuzzOptions): FuzzResult {
  const random = seededRandom(seed);
  const memberTimeoutMs = MEMBER_TIMEOUTS_MS[seed % MEMBER_TIMEOUTS_MS.length];
  const options: AgreementOptions = { memberTimeoutMs, isStrict };
  const between = (min: number, max: number): number => min + random() * (max - min);
  let now: Millis = between(1e6, 2e6);
  let pool: PoolState = createPoolState(now, options);
  let downTo: Millis = 0;
  let joined = 0;
  let nodes: FuzzedNode[] = [];
  let messages: PendingMessage[] = [];
  const overshoots: string[] = [];
  const used = new UsageAuditor();

  const add = (): void => {
    const name = `m${++joined}`;
    const staleForMs = isStrict ? memberTimeoutMs : STALE_FOR_MS;
    const skewMs = between(-HOUR_MS, HOUR_MS);
    const member = new PoolMember({ id: name, staleForMs, memberTimeoutMs });
    const syncAt = now + between(0, 100);
    nodes.push({ name, member, skewMs, syncAt, isolatedUntil: 0, suspendedUntil: 0 });
  };

  /** In the quiet period nothing is lost or slow. */
  let isQuiet = false;
  const isLost = (): boolean => !isQuiet && random() < 0.03;
  const delayMs = (): Millis => random() * (isQuiet || random() < 0.9 ? 5 : 0.45 * memberTimeoutMs);

  const send = (node: FuzzedNode): void => {
    const request = node.member.createRequest(now + node.skewMs);
    node.syncAt = now + between(MIN_SYNC_MS, 120);
    if (now < downTo || now < node.isolatedUntil || isLost()) return;
    messages.push({ at: now + delayMs(), deliver: () => arrive(node, request) });
  };

  const arrive = (node: FuzzedNode, request: ReturnType<PoolMember['createRequest']>): void => {
    if (now < downTo) return;
    const response = applySync(pool, request, now, options);
    if (!response || isLost()) return;
    messages.push({ at: now + delayMs(), deliver: () => receive(node, request.seq, response) });
  };

  const receive = (node: FuzzedNode, seq: number, response: SyncResponse): void => {
    if (now < node.suspendedUntil)
      messages.push({ at: node.suspendedUntil, deliver: () => receive(node, seq, response) });
    else if (nodes.includes(node)) node.member.applyResponse(seq, response, now + node.skewMs);
  };

  const suspend = (node: FuzzedNode): void => {
    // A member that has just failed to reach the store cannot know when it is dropped.
    if (node.member.view(now + node.skewMs).ageMs > MIN_SYNC_MS) return;
    node.suspendedUntil = now + between(50, 3 * memberTimeoutMs);
    node.syncAt = Math.max(node.syncAt, node.suspendedUntil);
  };

  const depart = (name: string): void => {
    if (now >= downTo && !isLost()) applyLeave(pool, name, now);
  };

  /** Random events besides syncs, with their probabilities per step. */
  const disturb = (): void => {
    const roll = random();
    const [victim] = nodes.length > 0 ? [nodes[Math.floor(random() * nodes.length)]] : [];
    if (roll < 0.02 && nodes.length < MAX_MEMBERS) add();
    else if (roll < 0.03 && victim) {
      nodes = nodes.filter((node) => node !== victim); // crashes
    } else if (roll < 0.04 && victim) {
      nodes = nodes.filter((node) => node !== victim);
      messages.push({ at: now + delayMs(), deliver: () => depart(victim.name) });
    } else if (roll < 0.045) downTo = now + between(50, 15_000);
    else if (roll < 0.048 && now >= downTo) pool = createPoolState(now, options);
    else if (isStrict && roll < 0.055 && victim) victim.isolatedUntil = now + between(50, 15_000);
    else if (roll > 0.995 && victim) suspend(victim);
  };

  const pass = (ms: Millis): void => {
    const until = now + ms;
    while (now < until) {
      const due = Math.min(
        until,
        ...nodes.map(({ syncAt }) => syncAt),
        ...messages.map(({ at }) => at),
      );
      now = Math.max(now, due);
      const ready = messages.filter(({ at }) => at <= now);
      messages = messages.filter(({ at }) => at > now);
      for (const { deliver } of ready) deliver();
      for (const node of nodes) if (node.syncAt <= now) send(node);
      const awake = nodes.filter(({ suspendedUntil }) => now >= suspendedUntil);
      const found = used.audit(now, awake);
      if (found !== undefined && overshoots.length < 5) overshoots.push(found);
    }
  };

  add();
  for (let step = 0; step < steps; step++) {
    disturb();
    pass(between(5, 60));
  }
  isQuiet = true;
  downTo = 0;
  for (const node of nodes)
    Object.assign(node, { isolatedUntil: 0, suspendedUntil: 0, syncAt: now });
  if (nodes.length === 0) add();
  pass(QUIESCENT_MS);
  return { overshoots, isFullyUsed: used.isFullyUsed };
}

/** Adds up the tokens that all members can use in the current second of the store's clock. */
export class UsageAuditor {
  /** True if all tokens of every limit were usable in the last complete second. */
  isFullyUsed = false;
  #second = -1;
  #peaks = new Map<string, number[]>();

  audit(now: Millis, users: readonly PoolUser[]): string | undefined {
    const second = Math.floor(now / 1000);
    if (second !== this.#second) {
      this.isFullyUsed = LIMITS.every((limit, n) => this.#total(n) === limit);
      this.#peaks = new Map();
    }
    this.#second = second;
    for (const { name, member, skewMs } of users) {
      const memberSecond = member.storeSecond(now + skewMs);
      const claim = memberSecond === undefined ? NO_CLAIM : member.claim(now + skewMs);
      const before = this.#peaks.get(name);
      const parts = LIMITS.map((limit, n) =>
        Math.max(before?.[n] ?? 0, quotaOf(limit, claim, memberSecond ?? 0)),
      );
      this.#peaks.set(name, parts);
    }
    const n = LIMITS.findIndex((limit, at) => this.#total(at) > limit);
    return n < 0 ? undefined : `at ${Math.round(now)}: ${this.#total(n)} of ${LIMITS[n]}`;
  }

  #total(n: number): number {
    return [...this.#peaks.values()].reduce((sum, parts) => sum + parts[n], 0);
  }
}

/** The part of a member, by the rule that grants tokens. */
const quotaOf = (limit: number, { size, rank }: Claim, second: number): number =>
  size === 0 ? 0 : memberQuota(limit, size, rank, second);
