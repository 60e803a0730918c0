/**
 * The script of a limit: takes any number of commands and returns one reply each, in one round trip.
 *
 *     KEYS   the key of each command; a key may occur several times
 *     ARGV   [time] and the commands: one string for each key, or one for all of them
 *
 *     time   ''            Redis's clock
 *            by 17…        Redis's clock; past this instant the caller has timed out, and nothing is granted
 *            by 17… <id>   as above, for a call with this id
 *            17…           this instant, for tests
 *
 *     command                   reply
 *     a<cost>                   check                    remaining · w<ms> wait · -1 never · -2-<ms> retry after
 *                                                        L<ms> locked by a lock-out
 *                                                        a refusal of several rules ends with #<number of the rule>
 *     n<cost>                   check without reserving
 *     w<cost>                   as n, for a call that continues to wait if it is refused: no lock-out counts the refusal
 *     i<a or n><ms> <cost> <id> check once for this id, which is remembered for <ms> if the call is allowed
 *     t<most>                   take up to <most>        how many
 *     t<most> <leave>           as t, but leave <leave>
 *     q<ahead> <cost> <cost> …  check a batch in order, up to the first refusal     <granted> <ms>,<ms>… <reply of the last>
 *                               the last granted permits may be due in <ms>, each at most <ahead>
 *     l                         read the state           <number> <number> …
 *     s<outcome> <cost> <used> <dueAt>                   settle
 *     s<outcome> <cost> <used> <dueAt> <id>              settle the call with this id, once
 *     r<what> <count>                                    report success or failure of attempts, or a refusal
 *     h<hits>                                            count hits served elsewhere
 *     g<tokens> <upTo>                                   credit tokens of another bucket; lost if late
 *     c<id> <number>… <number>…                          the second half replaces the first, if that is the state: 1, else 0;
 *                                                        1 and unchanged if the change of this id was made before
 *     y<number>…                                         begins a key with this state, unless it exists
 *     p                         probe                    0, or an error if Redis cannot decide
 *
 * and the commands of `lua-reservations.ts`, and of `lua-fair-queue.ts` with a fair queue.
 *
 * The first reply is the time on Redis's clock, the only clock that counts; `late 17…` if the deadline had passed.
 * Commands without a decision (s, h, r, x, u) are executed even then. Numbers are exact strings of 17 digits, states
 * are packed doubles. A key's state is read and written once per call, and expires when it is removable.
 *
 * A client may repeat a call after a reconnect. Executed twice, s, h and g would count twice, so Redis remembers the
 * ids of such calls for `CALL_MEMORY_MS` after their deadline, and a repeat does not execute them. A call that arrives
 * later does not execute them either, and replies `late` for them.
 *
 * The limit's parameters are part of the source, so each limit has its own script: parsing them in every call took as
 * long as the decision.
 */

import type { Policy } from '../../policies/policy.ts';
import { specsOf } from '../../policies/rules.ts';
import { bucketCheckScript } from './lua-bucket.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { timedFairQueueLua } from './lua-fair-queue.ts';
import { quotaCheckScript } from './lua-quota-check.ts';
import {
  REFUSE_RESERVED_LUA,
  RESERVATION_COMMANDS_LUA,
  RESERVATIONS_LUA,
} from './lua-reservations.ts';
import { hasShortForm, ruleLua } from './lua-rules.ts';
import { windowCheckScript } from './lua-window-check.ts';

/** How long after its deadline a call with an id is remembered and may still be executed. */
const CALL_MEMORY_MS = 10_000;

/** How long a conversion of a key is remembered: a change whose process died must be continued within this time. */
const CHANGE_MEMORY_MS = 3_600_000;

/** Idle time after which a state is dropped that never becomes removable: one day. */
const IDLE_TTL_MS = 86_400_000;

/** Longest expiry of other states, which expire when they are removable: 30,000 years, within Redis's range. */
const MAX_TTL_MS = 1e15;

/** A foreign value counts as missing and is overwritten: an error would fail the call and look like an outage. */
export const readLua = (isCheckOnly: boolean): string => `
local function read(key)
  local packed = redis.pcall('GET', key)${isCheckOnly ? REFUSE_RESERVED_LUA : ''}
  if type(packed) ~= 'table' then return packed end
  if string.find(packed.err, 'WRONGTYPE', 1, true) then return false end
  return redis.call('GET', key)
end
`;

/** Lua that defines `skippedReply`: the reply to s, h and g if this call must not execute them. */
const CALL_MEMORY_LUA = `
local skippedReply
if callId and callId ~= '' then
  local ms = ceil(deadline + ${CALL_MEMORY_MS} - now)
  if ms <= 0 then skippedReply = 'late'
  elseif not call('SET', KEYS[1] .. ':call:' .. callId, '', 'PX', ms + 1, 'NX') then skippedReply = 0 end
end
`;

/** The probe writes, because a read-only Redis (a replica, out of memory, without its replicas) cannot decide. */
export const PROBE_LUA = "redis.call('SET', key .. ':probe', '', 'PX', 1) return 0";

/** Commands of a script: all, those with a fair queue of an order, or `a` alone. */
export type ScriptScope = 'all' | `${FleetOrder}-queue` | 'check-only';

/** Hand-written scripts for a plain check of a single rule. */
const CHECK_SCRIPTS: Readonly<Record<string, typeof bucketCheckScript>> = {
  bucket: bucketCheckScript,
  window: windowCheckScript,
  quota: quotaCheckScript,
};

export function scriptOf(limit: Policy, scope: ScriptScope = 'all'): string {
  const { width } = limit;
  const specs = specsOf(limit) ?? [];
  const isFair = scope === 'fifo-queue' || scope === 'fair-queue';
  const [first] = specs;
  const checkScript = specs.length === 1 ? CHECK_SCRIPTS[first.kind] : undefined;
  const isCheckOnly = scope === 'check-only';
  if (isCheckOnly && checkScript) return checkScript(first, MAX_TTL_MS, readLua(true));
  return `${ruleLua(specs, isCheckOnly && hasShortForm(specs))}
local FORMAT, BYTES = '<${'d'.repeat(width)}', ${8 * width}
local call, sub, match, gmatch = redis.call, string.sub, string.match, string.gmatch
local function exact(x) return string.format('%.17g', x) end

local now = tonumber(ARGV[1])
local isTimeGiven = now ~= nil -- tests: state is then kept for a fixed time
local deadline, callId = match(ARGV[1], '^by (%S+) ?(%S*)$')
deadline = tonumber(deadline)
if not isTimeGiven then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local isLate = deadline ~= nil and now > deadline
${CALL_MEMORY_LUA}
${readLua(isCheckOnly)}
${isCheckOnly ? '' : RESERVATIONS_LUA}
local states, changed, reservations = {}, {}, {}
local function stateOf(key)
  local s = states[key]
  if s then return s end
  local packed = read(key)
  if packed and #packed == BYTES then
    s = { struct.unpack(FORMAT, packed) }
  ${isCheckOnly ? '' : READ_RESERVED_LUA}
  else
    s = {}
    rule.init(s, 0, now)
  end
  states[key] = s
  return s
end

-- Redis truncates numbers to integers, so a fraction travels as a string.
local function encodeNumber(value)
  if value == floor(value) then return value end
  return exact(value)
end

${ENCODE_REFUSAL_LUA}
local function encodeDecision(verdict, value, isLocked, refusing)
  if verdict == ALLOW then return encodeNumber(value) end
  if verdict == WAIT then return 'w' .. exact(value) end
  return encodeRefusal(value, isLocked, refusing)
end

${isCheckOnly ? 'local OPS = {}' : commandsLua(width)}
${isFair ? timedFairQueueLua(limit, scope === 'fair-queue' ? 'fair' : 'fifo') : ''}
local replies = { (isLate and 'late ' or '') .. exact(now) }
local isUniform = #ARGV == 2
local op, rest, cost
for i = 1, #KEYS do
  if i == 1 or not isUniform then
    local text = ARGV[isUniform and 2 or i + 1]
    op, rest = sub(text, 1, 1), sub(text, 2)
    cost = tonumber(rest)
  end
  local key = KEYS[i]
  local s = stateOf(key)
  if isLate and op ~= 's' and op ~= 'h' and op ~= 'r' and op ~= 'x' and op ~= 'u' then
    if op == 'f' or op == 'b' then op = 'l' end -- the queue is not touched
    s = { unpack(s, 1, ${width}) } -- decided on a copy: nothing is kept
  elseif op ~= 'l' and op ~= 'p' then
    changed[key] = s
  end
  if op == 'a' then
    replies[i + 1] = encodeDecision(rule.check(s, 0, cost, now))
  elseif skippedReply and (op == 's' or op == 'h' or op == 'r' or op == 'g') then
    replies[i + 1] = skippedReply
  ${isFair ? 'elseif QUEUE_COMMANDS[op] then replies[i + 1] = QUEUE_COMMANDS[op](rest, key)' : ''}
  else
    replies[i + 1] = OPS[op](s, rest, key)
    ${isFair ? "if op == 's' or op == 'u' then notifyHead(key) end -- what was given back may open the limit" : ''}
  end
end

${isFair ? 'serveQueues()' : ''}
for key, s in pairs(changed) do
${isCheckOnly ? "local tail, tailMs = '', 0" : 'local tail, tailMs = packReservations(reservations[key])'}
${writeLua(String(width))}
end
return replies
`;
}

export const ENCODE_REFUSAL_LUA = `
local function encodeRefusal(value, isLocked, refusing)
  local code = value == NEVER and -1 or -2 - value
  if not isLocked and not refusing then return code end
  return (isLocked and 'L' .. exact(value) or exact(code)) .. (refusing and '#' .. refusing or '')
end
`;

const READ_RESERVED_LUA = `elseif isReserved(packed, BYTES) then
    s = { struct.unpack(FORMAT, packed) }
    reservations[key] = readReservations(packed, BYTES, rule, s)`;

/**
 * Writes the state `s` of a key, by `rule` in `FORMAT`, with its reservations: `tail` lasts for `tailMs`. The state of
 * a rule that cannot tell when it is removable is kept for a fixed time, and so is every state in tests.
 */
export const writeLua = (width: string): string => `
  local freshAt, knownAt = rule.freshAt(s, 0)
  if freshAt <= now and tailMs == 0 and not isTimeGiven then
    call('DEL', key)
  else
    local ms = ${IDLE_TTL_MS}
    if not isTimeGiven then
      if freshAt < huge then ms = ceil(freshAt - now) + 1
      elseif knownAt then ms = max(ms, ceil(knownAt - now) + 1) end
      ms = min(max(ms, tailMs), ${MAX_TTL_MS})
    end
    call('SET', key, struct.pack(FORMAT, unpack(s, 1, ${width})) .. tail, 'PX', ms)
  end`;

/** All commands except `a`. */
const commandsLua = (width: number): string => `
-- Allow or deny: a reservation is undone. A call that waits on is not refused yet, and counts as no refusal.
local function checkNow(s, cost, isWaiting)
  local saved = { unpack(s, 1, ${width}) }
  local verdict, value, isLocked, refusing = rule.check(s, 0, cost, now)
  if verdict ~= WAIT and not (verdict == DENY and isWaiting) then return verdict, value, isLocked, refusing end
  for i = 1, ${width} do s[i] = saved[i] end
  if verdict == DENY then return verdict, value, isLocked, refusing end
  return DENY, ceil(value)
end

-- A call that several processes know by its id is settled once. Ignored, it was not charged: its repeat is.
local function settleId(idKey, outcome)
  local known = read(idKey)
  if not known or sub(known, 1, 1) == 's' then return false end
  if outcome == 'ignored' then call('DEL', idKey)
  else call('SET', idKey, 's' .. known, 'PX', max(1, call('PTTL', idKey))) end
  return true
end

local OPS = {
  n = function(s, rest) return encodeDecision(checkNow(s, tonumber(rest))) end,

  w = function(s, rest) return encodeDecision(checkNow(s, tonumber(rest), rule.countsRefusals)) end,

  i = function(s, rest, key)
    local op, ttl, cost, id = match(rest, '^(.)(%S+) (%S+) (.+)$')
    local idKey = key .. ':id:' .. id
    local known, number = match(read(idKey) or '', '^s?([aw])(.+)$')
    if known == 'a' then return encodeNumber(tonumber(number)) end
    if known == 'w' then return 'w' .. exact(max(0, tonumber(number) - now)) end
    local verdict, value, isLocked, refusing
    if op == 'a' then verdict, value, isLocked, refusing = rule.check(s, 0, tonumber(cost), now)
    else verdict, value, isLocked, refusing = checkNow(s, tonumber(cost)) end
    if verdict ~= DENY and not isLate then
      local decided = 'a' .. exact(value)
      if verdict == WAIT then decided = 'w' .. exact(now + value) end
      call('SET', idKey, decided, 'PX', ttl)
    end
    return encodeDecision(verdict, value, isLocked, refusing)
  end,

  t = function(s, rest)
    local most, leave = match(rest, '(%S+) ?(%S*)')
    local granted = min(tonumber(most), floor(rule.available(s, 0, now) - (tonumber(leave) or 0)))
    if granted <= 0 or rule.check(s, 0, granted, now) ~= ALLOW then return 0 end
    if leave ~= '' and rule.lendMs then rule.deferTo(s, 0, now + rule.lendMs, granted) end
    return encodeNumber(granted)
  end,

  q = function(s, rest)
    local ahead, costs = match(rest, '(%S+) (.+)')
    local granted, dueIn, verdict, value, isLocked, refusing = 0, {}, ALLOW, 0, nil, nil
    for text in gmatch(costs, '%S+') do
      local cost = tonumber(text)
      verdict, value, isLocked, refusing = checkNow(s, cost, rule.countsRefusals)
      if verdict == DENY and value ~= NEVER and rule.opensAt then
        local opensAt = rule.opensAt(s, 0)
        if opensAt - now <= tonumber(ahead) and rule.check(s, 0, cost, opensAt) == ALLOW then
          verdict, dueIn[#dueIn + 1] = ALLOW, exact(opensAt - now)
        end
      end
      if verdict == DENY then break end
      granted = granted + 1
    end
    return granted .. ' ' .. table.concat(dueIn, ',') .. ' ' .. encodeDecision(verdict, value, isLocked, refusing)
  end,

  l = function(s)
    local numbers = {}
    for i = 1, ${width} do numbers[i] = exact(s[i]) end
    return table.concat(numbers, ' ')
  end,

  s = function(s, rest, key)
    local outcome, cost, used, dueAt, id = match(rest, '(%S+) (%S+) (%S+) (%S+) ?(.*)')
    if id ~= '' and not settleId(key .. ':id:' .. id, outcome) then return 0 end
    dueAt = tonumber(dueAt)
    local isTimeUnknown = dueAt ~= dueAt -- NaN: the caller does not know when
    if isTimeUnknown then dueAt = now end
    rule.settle(s, 0, outcome == 'ignored', tonumber(cost), tonumber(used), dueAt, now, isTimeUnknown)
    return 0
  end,

  h = function(s, rest)
    rule.hits(s, 0, tonumber(rest), now)
    return 0
  end,

  r = function(s, rest)
    local what, count = match(rest, '(%S+) (%S+)')
    rule.report(s, 0, what, tonumber(count), now)
    return 0
  end,

  z = function(s)
    rule.init(s, 0, now)
    return 0
  end,

  c = function(s, rest, key)
    local id, text = match(rest, '(%S+) (.+)')
    local idKey = key .. ':changed'
    if call('GET', idKey) == id then return 1 end
    local numbers = {}
    for number in gmatch(text, '%S+') do numbers[#numbers + 1] = number end
    for i = 1, ${width} do if numbers[i] ~= exact(s[i]) then return 0 end end
    if isLate then return 0 end
    for i = 1, ${width} do s[i] = tonumber(numbers[${width} + i]) end
    -- A state that has become removable meanwhile was not written by the new rule.
    local ms = min(${CHANGE_MEMORY_MS}, ceil(rule.freshAt(s, 0) - now) + 1)
    if ms > 0 then call('SET', idKey, id, 'PX', ms) end
    return 1
  end,

  y = function(s, rest, key)
    if isLate or read(key) then return 0 end
    local i = 0
    for number in gmatch(rest, '%S+') do
      i = i + 1
      s[i] = tonumber(number)
    end
    return 1
  end,

  g = function(s, rest)
    local tokens, upTo = match(rest, '(%S+) (%S+)')
    rule.credit(s, 0, tonumber(tokens), tonumber(upTo), now)
    return 0
  end,

  p = function(s, rest, key) ${PROBE_LUA} end,
}
${RESERVATION_COMMANDS_LUA}`;
