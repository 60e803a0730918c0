/**
 * The agreement of `agreement.ts` in Lua: Redis's part of a sync.
 *
 * The function there visits every member. Here a thousand members sync ten times a second, so the data that a sync
 * needs about other members is kept in sorted sets, which count in a few steps:
 *
 *     state    the pool's own numbers, packed
 *     claims   id → sequence number, size, rank, round, packed
 *     lastSync ids by their last sync                  which members have timed out
 *     order    ids in the order they joined            the index is the rank
 *     sizes    ids by the size they use                capacity for one more, agreement of all
 *     turns    ids by the round of their turn, or -1   turns of an old round
 *
 * All keys except `state` contain every member, so they exist together: if Redis evicts one of them, the pool counts as
 * lost. Times are whole microseconds, as in Redis, and fit into a double for 250 years. After an outage for all members
 * `lastSync` stays unchanged: `outageUs` is the time that does not count.
 */

/** Retention of a pool without syncs. */
const POOL_TTL_MS = 6 * 3_600_000;

const KEY_SUFFIXES = ['state', 'claims', 'lastSync', 'order', 'sizes', 'turns'] as const;

/** The keys of a pool. The braces keep them in one cluster slot. */
export function poolKeys(prefix: string, pool: string): string[] {
  return KEY_SUFFIXES.map((part) => poolKey(prefix, pool, part));
}

export const checkpointKey = (prefix: string, pool: string): string =>
  poolKey(prefix, pool, 'checkpoint');

const poolKey = (prefix: string, pool: string, part: string): string =>
  `${prefix}:pool:{${pool.replace(/[%:{}]/g, encodeURIComponent)}}:${part}`;

/** The first argument of each script: the time in microseconds, for tests; '' for Redis's own clock. */
const SCRIPT_PRELUDE = `
local call, format, max, floor = redis.call, string.format, math.max, math.floor
local STATE, CLAIMS, LAST_SYNC, ORDER, SIZES, TURNS = unpack(KEYS)
local STATE_FORMAT, STATE_BYTES, CLAIM_FORMAT = '<dddddddd', 64, '<dddd'
local function whole(number) return format('%.0f', number) end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local count = 0
local round, quietTo, syncedAt, freedAt, turnFreedAt, outageUs, joins, keepAt

-- False if the pool is unknown.
local function read()
  local packed = call('GET', STATE)
  count = call('HLEN', CLAIMS)
  if not packed or #packed ~= STATE_BYTES then return false end
  if call('EXISTS', unpack(KEYS)) ~= (count > 0 and #KEYS or 1) then return false end
  round, quietTo, syncedAt, freedAt, turnFreedAt, outageUs, joins, keepAt =
    struct.unpack(STATE_FORMAT, packed)
  return true
end

local function write()
  if now >= keepAt then
    keepAt = now + ${(POOL_TTL_MS / 2) * 1000}
    for i = 2, #KEYS do call('PEXPIRE', KEYS[i], ${POOL_TTL_MS}) end
  end
  local packed = struct.pack(
    STATE_FORMAT, round, quietTo, syncedAt, freedAt, turnFreedAt, outageUs, joins, keepAt)
  call('SET', STATE, packed, 'PX', ${POOL_TTL_MS})
end

local function claimOf(id)
  local packed = call('HGET', CLAIMS, id)
  if not packed then return nil end
  local seq, size, rank, turn = struct.unpack(CLAIM_FORMAT, packed)
  return { size = size, rank = rank, round = turn }, seq
end

local function even(size) return { size = size, rank = -1, round = 0 } end

-- Records a release, so that no other member uses it in the second in which it may have been used last.
local function recordRelease(before, after, usedTo)
  if before.rank >= 0 and (after.rank ~= before.rank or after.round ~= before.round) then
    turnFreedAt = max(usedTo, turnFreedAt)
  end
  if before.size > 0 and (after.size == 0 or after.size > before.size) then
    freedAt = max(usedTo, freedAt)
    turnFreedAt = max(freedAt, turnFreedAt)
  end
end

local function nextRound() round = max(round + 1, now) end

local function removeMember(id)
  call('HDEL', CLAIMS, id)
  for i = 3, #KEYS do call('ZREM', KEYS[i], id) end
  count = count - 1
  nextRound()
end
`;

/**
 *     ARGV     [now] memberTimeoutUs isStrict id seq size rank round
 *     reply    now size rank round effectiveAt(ms) active isAgreed, in one string; or `late`
 */
export const SYNC_SCRIPT = `${SCRIPT_PRELUDE}
local memberTimeoutUs, isStrict = tonumber(ARGV[2]), ARGV[3] == '1'
local id, seq = ARGV[4], tonumber(ARGV[5])
local using = { size = tonumber(ARGV[6]), rank = tonumber(ARGV[7]), round = tonumber(ARGV[8]) }

-- The state of a store that knows no members, or lost them: existing members have yet to sync.
local function begin()
  call('DEL', unpack(KEYS))
  count, round, quietTo, syncedAt = 0, now, now + memberTimeoutUs, now
  freedAt = isStrict and quietTo or now + memberTimeoutUs / 2
  turnFreedAt, outageUs, joins, keepAt = freedAt, 0, 0, now
end

local function compensateOutage()
  local gapUs, wasQuiet = now - syncedAt, syncedAt < quietTo
  syncedAt = max(now, syncedAt)
  if gapUs < memberTimeoutUs / 2 then return end
  outageUs = outageUs + gapUs
  if wasQuiet then
    quietTo = quietTo + gapUs
    freedAt = max(now + memberTimeoutUs / 2, freedAt)
    turnFreedAt = max(freedAt, turnFreedAt)
  end
end

local function dropTimedOutMembers()
  local last = whole(now - outageUs - memberTimeoutUs)
  for _, gone in ipairs(call('ZRANGEBYSCORE', LAST_SYNC, '-inf', last)) do
    local usedTo = now
    if not isStrict then usedTo = call('ZSCORE', LAST_SYNC, gone) + outageUs + memberTimeoutUs / 2 end
    recordRelease(claimOf(gone), even(0), usedTo)
    removeMember(gone)
  end
end

local function addMember()
  joins = joins + 1
  call('ZADD', ORDER, joins, id)
  count = count + 1
  keepAt = now -- a key that was empty is new and has no expiry
  nextRound()
end

local function turnOf(claim) return claim.rank >= 0 and claim.round or -1 end

local function countIn(key, score) return call('ZCOUNT', key, score, score) end

local areEven -- nil until it is needed
local function areAllEven()
  if areEven == nil then areEven = countIn(SIZES, count) == count end
  return areEven
end

-- Writes what other members count, as far as it differs from before.
local function record(claim, before)
  if not before or before.size ~= claim.size then
    call('ZADD', SIZES, claim.size, id)
    areEven = nil
  end
  if not before or turnOf(before) ~= turnOf(claim) then call('ZADD', TURNS, turnOf(claim), id) end
end

local function isReleased()
  if not areAllEven() and call('ZCOUNT', SIZES, '(0', '(' .. count) > 0 then return false end
  local current = countIn(TURNS, whole(round))
  return current == count or current + countIn(TURNS, -1) == count
end

-- True if a member may have left: turns are released before they must be reassigned.
local function isAnySilent()
  return call('ZCOUNT', LAST_SYNC, '-inf', whole(now - outageUs - memberTimeoutUs / 2)) > 0
end

-- The member's own claim is counted too: where it matters, it is one that allows the size.
local function decideClaim(claim)
  local isOfOldRound = claim.rank >= 0 and (claim.round ~= round or isAnySilent())
  if claim.size > 0 and (claim.size < count or isOfOldRound) then
    return even(max(claim.size, count))
  end
  if now < quietTo or not isReleased() then return claim end
  if claim.size ~= count then return even(count) end
  if not areAllEven() or isAnySilent() then return claim end
  return { size = count, rank = call('ZRANK', ORDER, id), round = round }
end

local function isSmallerClaim(one, other)
  if one.size ~= other.size then
    return other.size > 0 and (one.size == 0 or one.size > other.size)
  end
  return one.rank < 0 and other.rank >= 0
end

if not read() then begin() end
compensateOutage()
dropTimedOutMembers()
local before, seqBefore = claimOf(id)
if before and seq <= seqBefore then
  write()
  return { 'late' }
end
if before then recordRelease(before, using, now) else addMember() end
call('ZADD', LAST_SYNC, now - outageUs, id)
record(using, before)
local nextClaim = decideClaim(using)
local claim = isSmallerClaim(using, nextClaim) and nextClaim or using
record(claim, using)
call('HSET', CLAIMS, id, struct.pack(CLAIM_FORMAT, seq, claim.size, claim.rank, claim.round))
write()
local effectiveAt = (floor((nextClaim.rank < 0 and freedAt or turnFreedAt) / 1000000) + 1) * 1000
return { format('%.0f %d %d %.0f %.0f %d %d',
  now, nextClaim.size, nextClaim.rank, nextClaim.round, effectiveAt, count, areAllEven() and 1 or 0) }
`;

/** ARGV: [now] id */
export const LEAVE_SCRIPT = `${SCRIPT_PRELUDE}
local id = ARGV[2]
local claim = read() and claimOf(id)
if claim then
  recordRelease(claim, even(0), now)
  removeMember(id)
  write()
end
return { 'left' }
`;

/** ARGV: [now]. Replies with three strings per member: id, `size rank`, microseconds since its last sync. */
export const MEMBERS_SCRIPT = `${SCRIPT_PRELUDE}
local reply = { 'members' }
if not read() then return reply end
local found = call('ZRANGE', LAST_SYNC, 0, -1, 'WITHSCORES')
local lastSyncAt = {}
for i = 1, #found, 2 do lastSyncAt[found[i]] = tonumber(found[i + 1]) + outageUs end
for _, id in ipairs(call('ZRANGE', ORDER, 0, -1)) do
  local claim = claimOf(id)
  reply[#reply + 1] = id
  reply[#reply + 1] = format('%d %d', claim.size, claim.rank)
  reply[#reply + 1] = whole(now - lastSyncAt[id])
end
return reply
`;

/** KEYS: the checkpoint's. ARGV: the text, its lifetime in milliseconds. */
export const SAVE_CHECKPOINT_SCRIPT = `redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return { 'saved' }`;

/** KEYS: the checkpoint's. Replies with it, or with an empty list. */
export const LOAD_CHECKPOINT_SCRIPT = `return { redis.call('GET', KEYS[1]) or nil }`;
