/**
 * How members of a pool agree how many they are, so that their parts never add up to more than the limit.
 *
 * This is what a store does with one sync, as a function: it runs as it is in memory and where a store can
 * only compare and swap, and in Lua where it can do more (`redis-script.ts`). Time is the store's; nobody else's
 * clock counts.
 *
 * The store knows of every member the most it can be using, its claim:
 *
 *     nothing                a member that has just come
 *     size 3                 floor(limit / 3)
 *     size 3, rank 1         that, and its turn at the remainder: with three ranks, all of the limit
 *
 * A member says with every sync what it uses, and is told what to use. To use less it may be told at any time;
 * the claim falls when it says that it does. To use more only if the others have made room, and the claim rises
 * before it knows. So whatever is lost or late, at any instant:
 *
 *     1. there are no more claims than the smallest size among them;
 *     2. those with a rank have one size, the smallest, and ranks of one round, so no two the same.
 *
 * From 1, count × floor(limit / size) ≤ limit; from 2, the remainder is handed out once.
 */

import type { Millis } from '../../core/clock.ts';

/** What a member uses, at most. */
export interface Claim {
  /** How many share the limit; 0: it uses nothing. */
  readonly size: number;
  /** Which of them this is, if it may also have a turn at the remainder; else -1. */
  readonly rank: number;
  /** The round that its rank is of. */
  readonly round: number;
}

export const NO_CLAIM: Claim = { size: 0, rank: -1, round: 0 };

/** What a member tells the store with a sync. */
export interface SyncRequest {
  readonly id: string;
  /** Of this member's syncs; an older one that comes late changes nothing. */
  readonly seq: number;
  readonly using: Claim;
}

/** What it is told. */
export interface SyncResponse {
  /** What to use. */
  readonly claim: Claim;
  /** From when on, on the store's clock, if it is more than before. */
  readonly effectiveAt: Millis;
  /** Who is there: how many, and whether all of them use their part of that. */
  readonly active: number;
  readonly isAgreed: boolean;
  /** The store's clock. */
  readonly now: Millis;
  /** By how much it may be later there, if that is not exactly known. */
  readonly clockUncertaintyMs?: Millis;
}

interface Member {
  readonly id: string;
  seq: number;
  claim: Claim;
  heardAt: Millis;
}

export interface PoolState {
  /** In the order they came. */
  members: Member[];
  /**
   * Another one whenever somebody comes or goes, and in a store that has forgotten everything. A whole number,
   * so that every store can keep it as it is: of microseconds, which go by faster than members come.
   */
  round: number;
  /** Until then nobody gets more: there may be members that this store has yet to hear of. */
  quietTo: Millis;
  /** When somebody synced last. */
  syncedAt: Millis;
  /** When somebody last gave up a part that it may have used until then, and a turn at the remainder. */
  freedAt: Millis;
  turnFreedAt: Millis;
}

/** What all members of a pool go by. */
export interface AgreementOptions {
  /** A member that was silent for so long is gone. */
  readonly memberTimeoutMs: Millis;
  /** True if a member that cannot reach the store stops using its part within that time. */
  readonly isStrict: boolean;
}

/** Parts are parts of a second: what is given up in one can be used by others in the next. */
const SECOND_MS: Millis = 1000;

/** A store that knows nobody, or has forgotten everybody: those who are there have yet to say so. */
export function createPoolState(
  now: Millis,
  { memberTimeoutMs, isStrict }: AgreementOptions,
): PoolState {
  const quietTo = now + memberTimeoutMs;
  // Who cannot say so may use its part until then; else it is dead, since it should have synced by then.
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

/** One sync; undefined if a later one of this member has come already. */
export function applySync(
  pool: PoolState,
  { id, seq, using }: SyncRequest,
  now: Millis,
  options: AgreementOptions,
): SyncResponse | undefined {
  compensateOutage(pool, now, options);
  dropTimedOutMembers(pool, now, options);
  const own = pool.members.find((member) => member.id === id) ?? addMember(pool, id, using, now);
  if (seq <= own.seq) return undefined;
  own.seq = seq;
  own.heardAt = now;
  recordRelease(pool, own.claim, using, now);
  own.claim = using;
  const told = decideClaim(pool, own, now, options);
  if (isSmallerClaim(using, told)) own.claim = told;
  const size = pool.members.length;
  return {
    claim: told,
    effectiveAt:
      (Math.floor((told.rank < 0 ? pool.freedAt : pool.turnFreedAt) / SECOND_MS) + 1) * SECOND_MS,
    active: size,
    isAgreed: pool.members.every(({ claim }) => claim.size === size),
    now,
  };
}

/** A member goes, and says that it has used its part for the last time. */
export function applyLeave(pool: PoolState, id: string, now: Millis): void {
  const gone = pool.members.find((member) => member.id === id);
  if (!gone) return;
  recordRelease(pool, gone.claim, NO_CLAIM, now);
  removeMember(pool, gone, now);
}

/** What a member is to use, now that everybody's claim is known. */
function decideClaim(
  pool: PoolState,
  own: Member,
  now: Millis,
  { memberTimeoutMs }: AgreementOptions,
): Claim {
  const size = pool.members.length;
  const { claim, id } = own;
  const others = pool.members.filter((member) => member.id !== id).map((member) => member.claim);
  const even = (parts: number): Claim => ({ size: parts, rank: -1, round: 0 });
  // Turns are dealt out anew when somebody has gone. If somebody may soon be gone they are given up already: what was
  // given up in one second can be used in the next, and by then it can be dealt out at once.
  const isSilent = (member: Member): boolean => now - member.heardAt >= memberTimeoutMs / 2;
  const isAnySilent = pool.members.some(isSilent);
  const isOfOldRound = claim.rank >= 0 && (claim.round !== pool.round || isAnySilent);
  // Less: somebody else has come, or turns have to be given up.
  if (claim.size > 0 && (claim.size < size || isOfOldRound))
    return even(Math.max(claim.size, size));
  if (now < pool.quietTo) return claim;
  // More: only once the others have made room, and nobody has a turn of another round.
  const isRoom = others.every(
    (other) => leavesRoomFor(other, size) && (other.rank < 0 || other.round === pool.round),
  );
  if (!isRoom) return claim;
  if (claim.size !== size) return even(size);
  const areEven = others.every((other) => other.size === size);
  return areEven && !isAnySilent
    ? { size, rank: pool.members.indexOf(own), round: pool.round }
    : claim;
}

/** Remembers what has been given up, so that nobody else uses it in the second in which it may have been used last. */
function recordRelease(pool: PoolState, before: Claim, after: Claim, usedTo: Millis): void {
  if (before.rank >= 0 && (after.rank !== before.rank || after.round !== before.round)) {
    pool.turnFreedAt = Math.max(usedTo, pool.turnFreedAt);
  }
  if (before.size > 0 && (after.size === 0 || after.size > before.size)) {
    pool.freedAt = Math.max(usedTo, pool.freedAt);
    pool.turnFreedAt = Math.max(pool.freedAt, pool.turnFreedAt);
  }
}

/** Whether a claim leaves room for as many as `size`. */
const leavesRoomFor = (claim: Claim, size: number): boolean =>
  claim.size === 0 || claim.size >= size;

/** Whether one claim is less than another. */
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

function removeMember(pool: PoolState, gone: Member, now: Millis): void {
  pool.members = pool.members.filter((member) => member !== gone);
  nextRound(pool, now);
}

function nextRound(pool: PoolState, now: Millis): void {
  pool.round = Math.max(pool.round + 1, wholeMicros(now));
}

const wholeMicros = (now: Millis): number => Math.floor(now * 1000);

/** Who could not reach the store because nobody could is not gone: it gets as long again, also to say that it is there. */
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
    // One that stops in time may have used its part until now; else it is dead, since it should have synced again.
    const usedTo = isStrict ? now : member.heardAt + memberTimeoutMs / 2;
    recordRelease(pool, member.claim, NO_CLAIM, usedTo);
    removeMember(pool, member, now);
  }
}
