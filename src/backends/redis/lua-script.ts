/**
 * The script: any number of asks in, as many answers out, in one round trip.
 *
 *     KEYS   whom each ask is about; the same key may come again
 *     ARGV   [when] and what is asked: one text for each key, or one for all of them
 *
 *     when   ''        on Redis's clock
 *            by 17…    the same; if it is past that, whoever asked has gone: nobody is given anything
 *            17…       at this time, for tests
 *
 *     ask                       answer
 *     a<cost>                   may it happen?           remaining · w<ms> · -1 never · -2-<ms> until then
 *     n<cost>                   the same, and nothing is reserved for later
 *     t<most>                   as many as there are     how many
 *     t<most> <leave>           all but so many
 *     q<ahead> <cost> <cost> …  those in line, until one is refused     <granted> <ms> <answer of the last>
 *                               the last one granted may use it only in so many ms, at most <ahead>
 *     l                         the state as it is       <number> <number> …
 *     s<outcome> <cost> <used> <dueAt>                   how a call went
 *     h<hits>                                            what others served
 *     g<units> <upTo>                                    units of another bucket come into this one; late, they are lost
 *     p                         could it be decided?     0, or an error
 *
 * and, for those who wait fairly, in a line that Redis keeps:
 *
 *     f<id> <cost>              joins the line, or asks if its turn has come    as a, or - in line
 *     x<id>                     leaves the line
 *     b<process> <id>           the process is alive     who is first, and in how many ms it may ask, less than
 *                                                        0 if a call must settle first; - if the line, or
 *                                                        that one of it, is gone
 *
 * The first answer is the time on Redis's clock, the only one that counts; `late 17…` if it was past
 * the time allowed. What is only told (s, h, x) is heard all the same. Numbers travel as text
 * that loses nothing (17 digits), states as packed doubles. A key's state is read once and written
 * once, however many asks of a call are about it, and expires by itself when it is as good as new.
 *
 * The limit's figures are part of the text, so each limit has a script of its own: reading them anew
 * with every call took as long as deciding.
 */

import type { RuleSpec } from '../../policies/policy.ts';
import { bucketCheckScript } from './lua-bucket.ts';
import { hasShortForm, ruleLua } from './lua-rules.ts';

/** A process that was silent for so long is gone. It says something every third of that. */
export const PROCESS_TIMEOUT_MS = 3000;

/** How long a state that never becomes as good as new is kept without anybody asking: a day. */
const IDLE_TTL_MS = 86_400_000;

/** Others are kept until they are, at most so long: some 30,000 years, the most Redis takes as it is written. */
const MAX_TTL_MS = 1e15;

/**
 * What a key holds. Something that is not ours (somebody else wrote there) counts as nothing and is written
 * over: as an error it would keep every key of the call from being decided, and look like an outage.
 */
const READ_LUA = `
local function read(key)
  local packed = redis.pcall('GET', key)
  if type(packed) ~= 'table' then return packed end
  if string.find(packed.err, 'WRONGTYPE', 1, true) then return false end
  return redis.call('GET', key)
end
`;

/** Writes something, in Lua: a Redis that only reads (a replica, out of memory, alone) cannot decide. */
export const PROBE_LUA = "redis.call('SET', key .. ':probe', '', 'PX', 1) return 0";

/**
 * The line of a key: a list of ids, first come first, and when each process was last heard of. An id
 * is `process/number/cost`. Whoever stands first and belongs to a process that has gone silent is
 * skipped. Whenever somebody else comes first it is told so, and in how many milliseconds it may ask:
 * so nobody has to ask before its turn.
 *
 * Whoever has such a line says what a place is: `look(key, cost)` and `letIn(key, id, cost)` give a verdict
 * and its value, `answer` puts both in one word.
 */
export const FAIR_QUEUE_LUA = `
local QUEUE_COMMANDS, PROCESS_TIMEOUT_MS = {}, ${PROCESS_TIMEOUT_MS}
local function queueKeysOf(key) return key .. ':line', key .. ':alive' end
local function processOf(id) return match(id, '^([^/]+)') end

-- The first in line of a process that is still there.
local function liveHeadOf(line, alive)
  while true do
    local first = call('LINDEX', line, 0)
    if not first then return nil end
    local seen = tonumber(call('HGET', alive, processOf(first)) or '0')
    if now - seen <= PROCESS_TIMEOUT_MS then return first end
    call('LPOP', line)
    call('HDEL', alive, processOf(first))
  end
end

local function msUntilTurn(key, id)
  local verdict, value = look(key, tonumber(match(id, '([^/]+)$')))
  if verdict == ALLOW then return 0 end
  if verdict == DENY and value == NEVER then return 0 end -- it is told when it asks
  return ceil(value)
end

-- Tells whoever is first that it is; who is alive is forgotten with the line.
local function notifyHead(key)
  local line, alive = queueKeysOf(key)
  local first = liveHeadOf(line, alive)
  if not first then
    call('DEL', alive)
    return
  end
  local ms = msUntilTurn(key, first)
  if ms >= 0 then -- else a call must settle first, and whoever settles it tells
    call('PUBLISH', 'sluice:turn:' .. processOf(first), first .. ' ' .. exact(ms))
  end
end

local function recordHeartbeat(alive, line, process)
  call('HSET', alive, process, exact(now))
  call('PEXPIRE', alive, 20 * PROCESS_TIMEOUT_MS)
  call('PEXPIRE', line, 20 * PROCESS_TIMEOUT_MS)
end

local function join(line, id)
  call('RPUSH', line, id)
  call('PEXPIRE', line, 20 * PROCESS_TIMEOUT_MS)
end

QUEUE_COMMANDS.f = function(rest, key)
  local id, cost = match(rest, '(%S+) (%S+)')
  local line, alive = queueKeysOf(key)
  recordHeartbeat(alive, line, processOf(id))
  local first = liveHeadOf(line, alive)
  if first and first ~= id then
    if not call('LPOS', line, id) then join(line, id) end
    return '-'
  end
  local verdict, value = admit(key, id, tonumber(cost))
  if verdict == DENY and value ~= NEVER then
    if not first then join(line, id) end
    return answer(verdict, value)
  end
  if first then call('LPOP', line) end
  notifyHead(key)
  return answer(verdict, value)
end

QUEUE_COMMANDS.x = function(rest, key)
  local line = queueKeysOf(key)
  local first = call('LINDEX', line, 0)
  call('LREM', line, 1, rest)
  if first == rest then notifyHead(key) end
  return 0
end

QUEUE_COMMANDS.b = function(rest, key)
  local process, standing = match(rest, '(%S+) (%S*)')
  local line, alive = queueKeysOf(key)
  recordHeartbeat(alive, line, process)
  local before = call('LINDEX', line, 0)
  local first = liveHeadOf(line, alive)
  if not first or first ~= before then notifyHead(key) end
  if not first or (standing ~= '' and not call('LPOS', line, standing)) then return '-' end
  return first .. ' ' .. exact(msUntilTurn(key, first))
end
`;

/** A place in line where time opens them. */
const TIMED_ADMISSION_LUA = `
local function look(key, cost)
  return rule.check({ unpack(stateOf(key), 1, rule.width) }, 0, cost, now)
end
local function admit(key, id, cost) return checkNow(stateOf(key), cost) end
`;

/** Which asks a script can answer: all, those of a fair line too, or plain ones (`a`) alone. */
export type ScriptScope = 'all' | 'fair-queue' | 'check-only';

/** Hand-written scripts for a plain check of a single rule. */
const CHECK_SCRIPTS: Readonly<Record<string, typeof bucketCheckScript>> = {
  bucket: bucketCheckScript,
};

export function scriptOf(
  specs: readonly RuleSpec[],
  width: number,
  scope: ScriptScope = 'all',
): string {
  const isFair = scope === 'fair-queue';
  const [first] = specs;
  const checkScript = specs.length === 1 ? CHECK_SCRIPTS[first.kind] : undefined;
  if (scope === 'check-only' && checkScript) return checkScript(first, MAX_TTL_MS, READ_LUA);
  return `${ruleLua(specs, scope === 'check-only' && hasShortForm(specs))}
local FORMAT, BYTES = '<${'d'.repeat(width)}', ${8 * width}
local call, sub, match, gmatch = redis.call, string.sub, string.match, string.gmatch
local function exact(x) return string.format('%.17g', x) end

local now = tonumber(ARGV[1])
local isTimeGiven = now ~= nil -- for tests: how long Redis keeps a state is then for it to say
local by = tonumber(match(ARGV[1], '^by (.+)$'))
if not isTimeGiven then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local isLate = by ~= nil and now > by

${READ_LUA}
local states, changed = {}, {}
local function stateOf(key)
  local s = states[key]
  if s then return s end
  local packed = read(key)
  if packed and #packed == BYTES then
    s = { struct.unpack(FORMAT, packed) }
  else
    s = {}
    rule.init(s, 0, now)
  end
  states[key] = s
  return s
end

-- A number as an answer: Redis would cut a fraction off.
local function encodeNumber(value)
  if value == floor(value) then return value end
  return exact(value)
end

local function answer(verdict, value)
  if verdict == ALLOW then return encodeNumber(value) end
  if verdict == WAIT then return 'w' .. exact(value) end
  if value == NEVER then return -1 end
  return -2 - value
end

${scope === 'check-only' ? 'local OPS = {}' : commandsLua(width)}
${isFair ? TIMED_ADMISSION_LUA + FAIR_QUEUE_LUA : ''}
local answers = { (isLate and 'late ' or '') .. exact(now) }
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
  if isLate and op ~= 's' and op ~= 'h' and op ~= 'x' then
    if op == 'f' or op == 'b' then op = 'l' end -- a line is not touched
    s = { unpack(s, 1, ${width}) } -- answered as ever, and nothing is kept
  elseif op ~= 'l' and op ~= 'p' then
    changed[key] = s
  end
  if op == 'a' then
    answers[i + 1] = answer(rule.check(s, 0, cost, now))
  ${isFair ? 'elseif QUEUE_COMMANDS[op] then answers[i + 1] = QUEUE_COMMANDS[op](rest, key)' : ''}
  else
    answers[i + 1] = OPS[op](s, rest, key)
  end
end

for key, s in pairs(changed) do
  local removableAt, knownAt = rule.removableAt(s, 0)
  if removableAt <= now and not isTimeGiven then
    call('DEL', key)
  else
    local ms = ${IDLE_TTL_MS}
    if not isTimeGiven then
      if removableAt < huge then ms = ceil(removableAt - now) + 1
      elseif knownAt then ms = max(ms, ceil(knownAt - now) + 1) end
      ms = min(ms, ${MAX_TTL_MS})
    end
    call('SET', key, struct.pack(FORMAT, unpack(s, 1, ${width})), 'PX', ms)
  end
end
return answers
`;
}

/** Everything but the plain ask. */
const commandsLua = (width: number): string => `
-- For who cannot use a place later: what was reserved is taken back.
local function checkNow(s, cost)
  local saved = { unpack(s, 1, ${width}) }
  local verdict, value = rule.check(s, 0, cost, now)
  if verdict ~= WAIT then return verdict, value end
  for i = 1, ${width} do s[i] = saved[i] end
  return DENY, ceil(value)
end

local OPS = {
  n = function(s, rest) return answer(checkNow(s, tonumber(rest))) end,

  t = function(s, rest)
    local most, leave = match(rest, '(%S+) ?(%S*)')
    local granted = min(tonumber(most), floor(rule.available(s, 0, now) - (tonumber(leave) or 0)))
    if granted <= 0 or rule.check(s, 0, granted, now) ~= ALLOW then return 0 end
    return encodeNumber(granted)
  end,

  q = function(s, rest)
    local ahead, costs = match(rest, '(%S+) (.+)')
    local granted, dueIn, verdict, value = 0, 0, ALLOW, 0
    for text in gmatch(costs, '%S+') do
      local cost = tonumber(text)
      verdict, value = checkNow(s, cost)
      if verdict == DENY and value ~= NEVER and dueIn == 0 and rule.opensAt then
        local opensAt = rule.opensAt(s, 0)
        if opensAt - now <= tonumber(ahead) and rule.check(s, 0, cost, opensAt) == ALLOW then
          verdict, dueIn = ALLOW, opensAt - now
        end
      end
      if verdict == DENY then break end
      granted = granted + 1
    end
    return granted .. ' ' .. exact(dueIn) .. ' ' .. answer(verdict, value)
  end,

  l = function(s)
    local numbers = {}
    for i = 1, ${width} do numbers[i] = exact(s[i]) end
    return table.concat(numbers, ' ')
  end,

  s = function(s, rest)
    local outcome, cost, used, dueAt = match(rest, '(%S+) (%S+) (%S+) (%S+)')
    dueAt = tonumber(dueAt)
    if dueAt ~= dueAt then dueAt = now end -- who does not know when says so with NaN
    rule.settle(s, 0, outcome == 'ignored', tonumber(cost), tonumber(used), dueAt, now)
    return 0
  end,

  h = function(s, rest)
    rule.hits(s, 0, tonumber(rest), now)
    return 0
  end,

  g = function(s, rest)
    local units, upTo = match(rest, '(%S+) (%S+)')
    rule.credit(s, 0, tonumber(units), tonumber(upTo), now)
    return 0
  end,

  p = function(s, rest, key) ${PROBE_LUA} end,
}
`;
