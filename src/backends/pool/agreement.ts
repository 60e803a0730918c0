/**
 * Agreement on the pool size: the parts of all members never add up to more than the limit.
 *
 * This is what a store does with one sync, as a pure function. It runs as it is in memory and in stores that
 * only compare and swap, and as Lua in Redis (`redis-script.ts`). Time is the store's; members' clocks do
 * not count.
 *
 * The store knows the claim of every member, the most that it can be using:
 *
 *     none                   a member that has just joined
 *     size 3                 floor(limit / 3)
 *     size 3, rank 1         that, and its turn at the remainder: three ranks make up the whole limit
 *
 * With every sync a member reports the claim it uses and receives the claim to use. A smaller claim may be
 * assigned at any time, and is recorded when the member reports it. A larger claim is assigned only once
 * the other members have released capacity, and is recorded before the member knows. So with any loss or
 * delay of messages, at any instant:
 *
 *     1. there are no more claims than the smallest size among them;
 *     2. claims with a rank have one size, the smallest, and ranks of one round, so no two are equal.
 *
 * From 1, count × floor(limit / size) ≤ limit; from 2, the remainder is granted once.
 */

import type { Millis } from '../../core/clock.ts';

/** The most that a member may use. */
export interface Claim {
  /** How many members divide the limit; 0: no part. */
  readonly size: number;
  /** Its rank, if it has turns at the remainder; else -1. */
  readonly rank: number;
  /** The round in which its rank was assigned. */
  readonly round: number;
}

export const NO_CLAIM: Claim = { size: 0, rank: -1, round: 0 };

/** What a member reports with a sync. */
export interface SyncRequest {
  readonly id: string;
  /** Sequence number of this member's syncs; an older one that arrives late changes nothing. */
  readonly seq: number;
  readonly using: Claim;
}

/** What the store replies to a sync. */
export interface SyncResponse {
  readonly claim: Claim;
  /** From when on a larger claim may be used, on the store's clock. */
  readonly effectiveAt: Millis;
  /** Members the store knows. */
  readonly active: number;
  /** True if all of them use this size. */
  readonly isAgreed: boolean;
  /** The store's clock. */
  readonly now: Millis;
  /** How much later it may be there, if that is not known exactly. */
  readonly clockUncertaintyMs?: Millis;
}

interface Member {
  readonly id: string;
  seq: number;
  claim: Claim;
  heardAt: Millis;
}

export interface PoolState {
  /** In the order they joined. */
  members: Member[];
  /**
   * Changes whenever a member joins or leaves, and in a store that lost its state. A whole number of
   * microseconds, so that every store can keep it exactly; members join less often than that.
   */
  round: number;
  /** Until then no claim grows: there may be members that have yet to sync with this store. */
  quietTo: Millis;
  /** The last sync of any member. */
  syncedAt: Millis;
  /** Until when a released part, and a released turn at the remainder, may have been used. */
  freedAt: Millis;
  turnFreedAt: Millis;
}

/** Options that all members of a pool must share. */
export interface AgreementOptions {
  /** A member that has not synced for this long is dropped. */
  readonly memberTimeoutMs: Millis;
  /** True if a member that loses the store stops using its part within that time. */
  readonly isStrict: boolean;
}

/** Parts are per second: what is released in one second can be used by other members in the next. */
const SECOND_MS: Millis = 1000;

/** The state of a store that knows no members, or lost them: existing members have yet to sync. */
export function createPoolState(
  now: Millis,
  { memberTimeoutMs, isStrict }: AgreementOptions,
): PoolState {
  const quietTo = now + memberTimeoutMs;
  // A strict member may use its part until then. Another that has not synced by half of it has crashed.
  const freedAt = isStrict ? quietTo : now + memberTimeoutMs / 2;
  return {
    members: [],
    round: wholeMicros(now),
    quietTo,
    syncedAt: now,
    freedAt,
    turnFreedAt: freedAt,
  };
}

/** Applies one sync; undefined if a later one of this member has been applied. */
export function applySync(
  pool: PoolState,
  { id, seq, using }: SyncRequest,
  now: Millis,
  options: AgreementOptions,
): SyncResponse | undefined {
  compensateOutage(pool, now, options);
  dropTimedOutMembers(pool, now, options);
  const member = pool.members.find((known) => known.id === id) ?? addMember(pool, id, using, now);
  if (seq <= member.seq) return undefined;
  member.seq = seq;
  member.heardAt = now;
  recordRelease(pool, member.claim, using, now);
  member.claim = using;
  const claim = decideClaim(pool, member, now, options);
  if (isSmallerClaim(using, claim)) member.claim = claim;
  const size = pool.members.length;
  return {
    claim,
    effectiveAt:
      (Math.floor((claim.rank < 0 ? pool.freedAt : pool.turnFreedAt) / SECOND_MS) + 1) * SECOND_MS,
    active: size,
    isAgreed: pool.members.every((known) => known.claim.size === size),
    now,
  };
}

/** Removes a member that has stopped using its part. */
export function applyLeave(pool: PoolState, id: string, now: Millis): void {
  const left = pool.members.find((member) => member.id === id);
  if (!left) return;
  recordRelease(pool, left.claim, NO_CLAIM, now);
  removeMember(pool, left, now);
}

/** The claim that a member is to use, given the claims of all. */
function decideClaim(
  pool: PoolState,
  member: Member,
  now: Millis,
  { memberTimeoutMs }: AgreementOptions,
): Claim {
  const size = pool.members.length;
  const { claim, id } = member;
  const others = pool.members.filter((other) => other.id !== id).map((other) => other.claim);
  const even = (parts: number): Claim => ({ size: parts, rank: -1, round: 0 });
  // Turns are reassigned when a member has left. They are released as soon as a member may have left: what is
  // released in one second can be used in the next, and by then it can be reassigned at once.
  const isSilent = ({ heardAt }: Member): boolean => now - heardAt >= memberTimeoutMs / 2;
  const isAnySilent = pool.members.some(isSilent);
  const isOfOldRound = claim.rank >= 0 && (claim.round !== pool.round || isAnySilent);
  // Smaller: a member has joined, or turns must be released.
  if (claim.size > 0 && (claim.size < size || isOfOldRound))
    return even(Math.max(claim.size, size));
  if (now < pool.quietTo) return claim;
  // Larger: only once all others have released capacity, and none has a turn of another round.
  const isReleased = others.every(
    (other) => allowsSize(other, size) && (other.rank < 0 || other.round === pool.round),
  );
  if (!isReleased) return claim;
  if (claim.size !== size) return even(size);
  const areEven = others.every((other) => other.size === size);
  return areEven && !isAnySilent
    ? { size, rank: pool.members.indexOf(member), round: pool.round }
    : claim;
}

/** Records a release, so that no other member uses it in the second in which it may have been used last. */
function recordRelease(pool: PoolState, before: Claim, after: Claim, usedTo: Millis): void {
  if (before.rank >= 0 && (after.rank !== before.rank || after.round !== before.round)) {
    pool.turnFreedAt = Math.max(usedTo, pool.turnFreedAt);
  }
  if (before.size > 0 && (after.size === 0 || after.size > before.size)) {
    pool.freedAt = Math.max(usedTo, pool.freedAt);
    pool.turnFreedAt = Math.max(pool.freedAt, pool.turnFreedAt);
  }
}

/** True if a claim leaves capacity for `size` members. */
const allowsSize = (claim: Claim, size: number): boolean => claim.size === 0 || claim.size >= size;

function isSmallerClaim(one: Claim, other: Claim): boolean {
  if (one.size !== other.size) return other.size > 0 && (one.size === 0 || one.size > other.size);
  return one.rank < 0 && other.rank >= 0;
}

function addMember(pool: PoolState, id: string, using: Claim, now: Millis): Member {
  const member = { id, seq: 0, claim: using, heardAt: 0 };
  pool.members.push(member);
  nextRound(pool, now);
  return member;
}

function removeMember(pool: PoolState, left: Member, now: Millis): void {
  pool.members = pool.members.filter((member) => member !== left);
  nextRound(pool, now);
}

function nextRound(pool: PoolState, now: Millis): void {
  pool.round = Math.max(pool.round + 1, wholeMicros(now));
}

const wholeMicros = (now: Millis): number => Math.floor(now * 1000);

/** After an outage of the store for all, no member is dropped: each gets the time of the outage again. */
function compensateOutage(
  pool: PoolState,
  now: Millis,
  { memberTimeoutMs }: AgreementOptions,
): void {
  const gapMs = now - pool.syncedAt;
  const wasQuiet = pool.syncedAt < pool.quietTo;
  pool.syncedAt = Math.max(now, pool.syncedAt);
  if (gapMs < memberTimeoutMs / 2) return;
  if (wasQuiet) {
    pool.quietTo += gapMs;
    pool.freedAt = Math.max(now + memberTimeoutMs / 2, pool.freedAt);
    pool.turnFreedAt = Math.max(pool.freedAt, pool.turnFreedAt);
  }
  for (const member of pool.members) member.heardAt += gapMs;
}

function dropTimedOutMembers(
  pool: PoolState,
  now: Millis,
  { memberTimeoutMs, isStrict }: AgreementOptions,
): void {
  for (const member of pool.members) {
    if (now - member.heardAt < memberTimeoutMs) continue;
    // A strict member may have used its part until now. Another has crashed, since it should have synced again.
    const usedTo = isStrict ? now : member.heardAt + memberTimeoutMs / 2;
    recordRelease(pool, member.claim, NO_CLAIM, usedTo);
    removeMember(pool, member, now);
  }
}
