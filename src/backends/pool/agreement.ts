/**
 * Agreement on the pool size: the parts of all members never add up to more than the limit.
 *
 * This pure function is the store's part of a sync. It runs unchanged in memory and in stores that only compare and
 * swap, and as Lua in Redis (`redis-script.ts`). Only the store's time counts, not the members' clocks.
 *
 * The store knows the claim of every member: an upper bound on its use.
 *
 *     none                   a member that has just joined
 *     size 3                 floor(limit / 3)
 *     size 3, rank 1         that, and its turn at the remainder: three ranks make up the whole limit
 *
 * With every sync a member reports the claim it uses and receives the claim to use. A smaller claim may be assigned at
 * any time, and is recorded when the member reports it. A larger claim is assigned only when the other members have
 * released capacity, and is recorded before the member receives it. So with any loss or delay of messages, at any
 * instant:
 *
 *     1. there are no more claims than the smallest size among them;
 *     2. claims with a rank have one size, the smallest, and ranks of one round, so no two are equal.
 *
 * From 1, count × floor(limit / size) ≤ limit; from 2, the remainder is granted once.
 */

import type { Millis } from '../../core/clock.ts';

/** The most that a member may use, as a part of the limit. */
export interface Claim {
  /** Number of members that divide the limit; 0: no part. */
  readonly size: number;
  /** Its rank if it has turns at the remainder; otherwise -1. */
  readonly rank: number;
  /** The round in which its rank was assigned. */
  readonly round: number;
}

export const NO_CLAIM: Claim = { size: 0, rank: -1, round: 0 };

/** Sent by a member with a sync. */
export interface SyncRequest {
  readonly id: string;
  /** Sequence number of this member's syncs. A late sync with a lower number is ignored. */
  readonly seq: number;
  readonly using: Claim;
}

/** The store's reply to a sync. */
export interface SyncResponse {
  readonly claim: Claim;
  /** The time from which a larger claim may be used, on the store's clock. */
  readonly effectiveAt: Millis;
  /** Number of members that the store knows. */
  readonly active: number;
  /** True if all of them use this size. */
  readonly isAgreed: boolean;
  /** The store's clock. */
  readonly now: Millis;
  /** How much later it may be there, if the clock is not known exactly. */
  readonly clockUncertaintyMs?: Millis;
}

interface Member {
  readonly id: string;
  seq: number;
  claim: Claim;
  heardAt: Millis;
}

export interface PoolState {
  /** Members in the order in which they joined. */
  members: Member[];
  /**
   * Changes when a member joins or leaves, and in a store that lost its state. A whole number of microseconds, so every
   * store can hold it exactly; members join less often than that.
   */
  round: number;
  /** Until this time no claim grows: existing members may not have synced with this store yet. */
  quietTo: Millis;
  /** Time of the last sync of any member. */
  syncedAt: Millis;
  /** Until this time a released part, or a released turn at the remainder, may have been used. */
  freedAt: Millis;
  turnFreedAt: Millis;
}

/** Options that all members of a pool must share. */
export interface AgreementOptions {
  /** A member without a sync for this long is dropped. */
  readonly memberTimeoutMs: Millis;
  /** True if a member without contact to the store stops using its part within that time. */
  readonly isStrict: boolean;
}

/** Parts are per second: other members can use a part in the second after its release. */
const SECOND_MS: Millis = 1000;

/** The state of a store that knows no members or has lost them: existing members have not synced yet. */
export function createPoolState(
  now: Millis,
  { memberTimeoutMs, isStrict }: AgreementOptions,
): PoolState {
  const quietTo = now + memberTimeoutMs;
  // A strict member may use its part until then. Another member that has not synced by half of it has crashed.
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

/** Applies a sync; undefined if a later sync of this member was already applied. */
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

/** Removes a member that no longer uses its part. */
export function applyLeave(pool: PoolState, id: string, now: Millis): void {
  const left = pool.members.find((member) => member.id === id);
  if (!left) return;
  recordRelease(pool, left.claim, NO_CLAIM, now);
  removeMember(pool, left, now);
}

/** The claim that a member should use, given the claims of all. */
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
  // Turns are reassigned when a member has left. They are released as soon as a member may have left: a turn that is
  // released in one second can be used in the next, and by then it can be reassigned at once.
  const isSilent = ({ heardAt }: Member): boolean => now - heardAt >= memberTimeoutMs / 2;
  const isAnySilent = pool.members.some(isSilent);
  const isOfOldRound = claim.rank >= 0 && (claim.round !== pool.round || isAnySilent);
  // A smaller claim: a member has joined, or turns must be released.
  if (claim.size > 0 && (claim.size < size || isOfOldRound))
    return even(Math.max(claim.size, size));
  if (now < pool.quietTo) return claim;
  // A larger claim only when all others have released capacity and none has a turn of another round.
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

/** Records a release, so that no other member uses the part in the second of its last possible use. */
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

/** Compensates an outage of the store for all members: its duration does not count as silence, so none is dropped. */
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
    // A strict member may have used its part until now. Other members have crashed: they should have synced by then.
    const usedTo = isStrict ? now : member.heardAt + memberTimeoutMs / 2;
    recordRelease(pool, member.claim, NO_CLAIM, usedTo);
    removeMember(pool, member, now);
  }
}
