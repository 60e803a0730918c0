/**
 * What Redis does with one sync: the rule of `agreement.ts`, in Lua.
 *
 * There it looks at every member each time. Here a thousand of them sync ten times a second, so what it needs
 * to know of the others is kept where counting takes a few steps, however many they are:
 *
 *     state    the pool's own numbers, packed
 *     claims   id → number of its last sync, size, rank, round, packed
 *     heard    ids by when they were heard             who is stale
 *     order    ids in the order they came              an id's place in it is its rank
 *     sizes    ids by the size they use                whether there is room, whether all agree
 *     turns    ids by the round their turn is of, or -1 whether anybody has an old turn
 *
 * All but `state` have every member, so they come and go together: a Redis short of memory may drop one of them,
 * and then the pool is as good as forgotten. Times are whole microseconds, as Redis tells them, and fit a double for 250 years.
 * Nobody is moved in `heard` when there was an outage for all: `lostUs` is how much time does not count.
 */

/** How long a pool is kept that nobody syncs with. */
const POOL_TTL_MS = 6 * 3_600_000;

const KEY_SUFFIXES = ['state', 'claims', 'heard', 'order', 'sizes', 'turns'] as const;

/** Where a pool lives: in braces, so that a cluster keeps all of it in one place. */
export function poolKeys(prefix: string, pool: string): string[] {
  return KEY_SUFFIXES.map((part) => poolKey(prefix, pool, part));
}

/** Where it is left what others want to know later. */
export const checkpointKey = (prefix: string, pool: string): string =>
  poolKey(prefix, pool, 'note');

const poolKey = (prefix: string, pool: string, part: string): string =>
  `${prefix}:pool:{${pool.replace(/[%:{}]/g, encodeURIComponent)}}:${part}`;

/** The first argument of each script: the time in microseconds, for tests; '' for Redis's own clock. */
const SCRIPT_PRELUDE = `
local call, format, max, floor = redis.call, string.format, math.max, math.floor
local STATE, CLAIMS, HEARD, ORDER, SIZES, TURNS = unpack(KEYS)
local STATE_FORMAT, STATE_BYTES, CLAIM_FORMAT = '<dddddddd', 64, '<dddd'
local function whole(number) return format('%.0f', number) end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local count = 0
local round, quietTo, syncedAt, freedAt, turnFreedAt, outageUs, joins, keepAt

-- False if nothing is known of this pool.
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

-- Remembers what has been given up, so that nobody else uses it in the second in which it may have been used last.
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
 *     ARGV     [now] staleUs isStrict id seq size rank round
 *     answer   now size rank round fromAt(ms) active isAgreed, in one text; `late`
 */
export const SYNC_SCRIPT = `${SCRIPT_PRELUDE}
local memberTimeoutUs, isStrict = tonumber(ARGV[2]), ARGV[3] == '1'
local id, seq = ARGV[4], tonumber(ARGV[5])
local using = { size = tonumber(ARGV[6]), rank = tonumber(ARGV[7]), round = tonumber(ARGV[8]) }

-- A store that knows nobody, or has forgotten everybody: those who are there have yet to say so.
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
  for _, gone in ipairs(call('ZRANGEBYSCORE', HEARD, '-inf', last)) do
    local usedTo = now
    if not isStrict then usedTo = call('ZSCORE', HEARD, gone) + outageUs + memberTimeoutUs / 2 end
    recordRelease(claimOf(gone), even(0), usedTo)
    removeMember(gone)
  end
end

local function addMember()
  joins = joins + 1
  call('ZADD', ORDER, joins, id)
  count = count + 1
  keepAt = now -- what was empty is a new key
  nextRound()
end

local function turnOf(claim) return claim.rank >= 0 and claim.round or -1 end

local function countIn(key, score) return call('ZCOUNT', key, score, score) end

local areEven -- nil until somebody wants to know
local function areAllEven()
  if areEven == nil then areEven = countIn(SIZES, count) == count end
  return areEven
end

-- What the others count. What was recorded before, if anything, need not be written again.
local function record(claim, before)
  if not before or before.size ~= claim.size then
    call('ZADD', SIZES, claim.size, id)
    areEven = nil
  end
  if not before or turnOf(before) ~= turnOf(claim) then call('ZADD', TURNS, turnOf(claim), id) end
end

local function isRoom()
  if not areAllEven() and call('ZCOUNT', SIZES, '(0', '(' .. count) > 0 then return false end
  local current = countIn(TURNS, whole(round))
  return current == count or current + countIn(TURNS, -1) == count
end

-- Who may soon be gone: turns are given up before they have to be dealt out anew.
local function isAnySilent()
  return call('ZCOUNT', HEARD, '-inf', whole(now - outageUs - memberTimeoutUs / 2)) > 0
end

-- Its own claim is among those that are counted: when it matters, it is one that leaves room.
local function decideClaim(claim)
  local isOfOldRound = claim.rank >= 0 and (claim.round ~= round or isAnySilent())
  if claim.size > 0 and (claim.size < count or isOfOldRound) then
    return even(max(claim.size, count))
  end
  if now < quietTo or not isRoom() then return claim end
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
call('ZADD', HEARD, now - outageUs, id)
record(using, before)
local told = decideClaim(using)
local claim = isSmallerClaim(using, told) and told or using
record(claim, using)
call('HSET', CLAIMS, id, struct.pack(CLAIM_FORMAT, seq, claim.size, claim.rank, claim.round))
write()
local effectiveAt = (floor((told.rank < 0 and freedAt or turnFreedAt) / 1000000) + 1) * 1000
return { format('%.0f %d %d %.0f %.0f %d %d',
  now, told.size, told.rank, told.round, effectiveAt, count, areAllEven() and 1 or 0) }
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

/** ARGV: [now]. Answers with three texts for each: its id, `size rank`, how many microseconds ago it was heard. */
export const MEMBERS_SCRIPT = `${SCRIPT_PRELUDE}
local answer = { 'members' }
if not read() then return answer end
local heard = call('ZRANGE', HEARD, 0, -1, 'WITHSCORES')
local heardAt = {}
for i = 1, #heard, 2 do heardAt[heard[i]] = tonumber(heard[i + 1]) + outageUs end
for _, id in ipairs(call('ZRANGE', ORDER, 0, -1)) do
  local claim = claimOf(id)
  answer[#answer + 1] = id
  answer[#answer + 1] = format('%d %d', claim.size, claim.rank)
  answer[#answer + 1] = whole(now - heardAt[id])
end
return answer
`;

/** KEYS: the note's. ARGV: the text, for how many milliseconds. */
export const SAVE_CHECKPOINT_SCRIPT = `redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return { 'noted' }`;

/** KEYS: the note's. Answers with it, or with nothing. */
export const LOAD_CHECKPOINT_SCRIPT = `return { redis.call('GET', KEYS[1]) or nil }`;
