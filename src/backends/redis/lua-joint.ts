/**
 * The script of joint checks: several limits, each with its own key, cost and rules, are all charged or none.
 *
 *     KEYS   the keys of all commands, as many for each command as it has parts
 *     ARGV   [time] and the commands, as in `lua-script.ts`
 *
 *     command   j<mode><cost> <lease> <rules>;<cost> <lease> <rules>;…    one part for each key
 *     mode      n  now or not at all
 *               a  a slot may be reserved: w<ms> is granted. Of one limit only
 *               q  a refused call continues to wait: no lock-out counts the refusal
 *     rules     <kind> <number> <number> …,<kind> <number> …    the last word of a quota is its time zone
 *     lease     the id of a lease, for a limit on calls in flight; else -, or + for rules of the same limit as the next part
 *     reply     1;<reply>;<reply>;…   granted: for each part the reply to a check, or of a lease <remaining> 0 <token>
 *               0;<reply>;ok;…        refused: the reply of a part that refuses, ok of one that would allow
 *
 * The rules are part of the command, so one script serves every combination of limits. A late call decides nothing. As
 * in `all` of one limit, a refusing part keeps its record of the call, and the others are restored. A lock-out that
 * counts refusals counts those of its own limit, including those of a lease beside it.
 */

import type { RuleSpec } from '../../policies/policy.ts';
import type { TimeZone } from '../../policies/time-zone.ts';
import { RESERVATIONS_LUA } from './lua-reservations.ts';
import { allRulesLua } from './lua-rules.ts';
import { ENCODE_REFUSAL_LUA, readLua, writeLua } from './lua-script.ts';
import { LEASES_LUA } from './lua-semaphore.ts';

/** The rules of a limit as part of a command. */
export const rulesText = (specs: readonly RuleSpec[] = []): string =>
  specs
    .map(({ kind, params, zone }) => [kind, ...params.map(numberText), ...zoneText(zone)].join(' '))
    .join(',');

/** A time zone as `@<start>:<offset>:<start>:<offset>…`. */
const zoneText = (zone: TimeZone | undefined): string[] =>
  zone ? [`@${zone.starts.map((start, n) => `${start}:${zone.offsets[n]}`).join(':')}`] : [];

const numberText = (value: number): string => (value === Infinity ? 'huge' : String(value));

export const JOINT_SCRIPT = `${allRulesLua()}
local call, match, gmatch, sub = redis.call, string.match, string.gmatch, string.sub
local function exact(x) return string.format('%.17g', x) end
local isTimeGiven = false
local now = tonumber(ARGV[1]) -- tests
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local deadline = tonumber(match(ARGV[1], '^by (%S+)'))
local isLate = deadline ~= nil and now > deadline
${readLua(false)}
${RESERVATIONS_LUA}
${LEASES_LUA}

-- The changes of a time zone. Most calls need none of them.
local function zoneOf(word)
  return function()
    local starts, offsets = {}, {}
    for start, offset in gmatch(word, '([^@:]+):([^:]+)') do
      starts[#starts + 1], offsets[#starts + 1] = tonumber(start), tonumber(offset)
    end
    return starts, offsets
  end
end

local function paramOf(word)
  if word == 'huge' then return huge end
  return tonumber(word) or zoneOf(word)
end

local rules = {}
local function ruleOf(text)
  if rules[text] then return rules[text] end
  local parts = {}
  for kind, rest in gmatch(text, '(%a+)([^,]*)') do
    local params = {}
    for word in gmatch(rest, '%S+') do params[#params + 1] = paramOf(word) end
    parts[#parts + 1] = RULES[kind](unpack(params))
  end
  rules[text] = #parts == 1 and parts[1] or all(parts)
  return rules[text]
end

-- The states of all keys: read once, written once.
local cells = {}
local function cellOf(key, text)
  local cell = cells[key]
  if cell then return cell end
  local rule = ruleOf(text)
  cell = { rule = rule, format = '<' .. string.rep('d', rule.width), s = {} }
  local packed, bytes = read(key), 8 * rule.width
  if packed and (#packed == bytes or isReserved(packed, bytes)) then
    cell.s = { struct.unpack(cell.format, packed) }
    cell.reservations = readReservations(packed, bytes, rule, cell.s)
  else
    rule.init(cell.s, 0, now)
  end
  cells[key] = cell
  return cell
end

${ENCODE_REFUSAL_LUA}
-- Each returns whether the part allows, its reply, and how to undo it.
local function checkLease(key, most, id, cost)
  if cost > most then return false, '-1' end
  expireLeases(key)
  removeLease(key, id, cost) -- sent again, it must not be refused by its own lease
  local remaining = most - call('ZCARD', key) - cost
  if remaining < 0 then return false, '-2' end
  writeLease(key, id, cost)
  return true, exact(remaining) .. ' 0 ' .. exact(nextToken(key)), function() removeLease(key, id, cost) end
end

local function checkRule(cell, cost, mode)
  local s, rule = cell.s, cell.rule
  local saved = { unpack(s, 1, rule.width) }
  local function undo() for i = 1, rule.width do s[i] = saved[i] end end
  local verdict, value, isLocked, refusing = rule.check(s, 0, cost, now)
  if verdict == ALLOW then return true, exact(value), undo end
  if verdict == WAIT and mode == 'a' then return true, 'w' .. exact(value), undo end
  if verdict == WAIT then value = ceil(value) end
  if verdict == WAIT or (mode == 'q' and rule.countsRefusals) then undo() end
  local reply = encodeRefusal(value, isLocked, refusing)
  return false, type(reply) == 'number' and exact(reply) or reply
end

-- The rules would allow, and the lease of the same limit is refused until a call settles.
local function countRefusal(cell)
  if not cell.rule.recordRefusal then return 'ok' end
  local ms, locking = cell.rule.recordRefusal(cell.s, 0, now)
  return ms > 0 and encodeRefusal(ms, true, locking) or 'ok'
end

-- Decides a command whose keys begin at KEYS[at]; returns its reply, and where the next one's keys begin.
local function decide(at, text)
  local replies, undos, counting, isGranted = {}, {}, {}, true
  local mode = sub(text, 2, 2)
  for cost, lease, rest in gmatch(sub(text, 3), '(%S+) (%S+) ([^;]+);') do
    local key, most = KEYS[at], tonumber(match(rest, '^concurrency (%S+)$'))
    cost = tonumber(cost)
    local isAllowed, reply, undo
    if most then isAllowed, reply, undo = checkLease(key, most, lease, cost)
    else isAllowed, reply, undo = checkRule(cellOf(key, rest), cost, mode) end
    local n = #replies + 1
    replies[n], undos[n] = reply, isAllowed and undo or false
    counting[n] = lease == '+' and mode ~= 'q' and cost > 0 and cells[key]
    isGranted = isGranted and isAllowed
    at = at + 1
  end
  if isGranted then return '1;' .. table.concat(replies, ';'), at end
  for n = #replies, 1, -1 do
    if undos[n] then
      undos[n]()
      replies[n] = counting[n] and replies[n + 1] == '-2' and countRefusal(counting[n]) or 'ok'
    end
  end
  return '0;' .. table.concat(replies, ';'), at
end

local replies = { (isLate and 'late ' or '') .. exact(now) }
if isLate then return replies end
local at = 1
while at <= #KEYS do
  local n = #replies
  replies[n + 1], at = decide(at, ARGV[#ARGV == 2 and 2 or n + 1])
end

for key, cell in pairs(cells) do
  local rule, s, FORMAT = cell.rule, cell.s, cell.format
  local tail, tailMs = packReservations(cell.reservations)
${writeLua('rule.width')}
end
return replies
`;
