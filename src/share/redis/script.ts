/**
 * The one script: any number of asks in, as many answers out, in one round trip.
 *
 *     KEYS   the states, one string each
 *     ARGV   [when]  [parts] { kind, n, number × n }  { op, key, … }
 *
 *     when  ''        on Redis's clock
 *           by 17…    the same; if it is past that, whoever asked has gone: nobody is given anything
 *           17…       at this time, for tests
 *
 *     op   what follows           answer
 *     a    cost                   verdict, value       may it happen?
 *     n    cost                   verdict, value       the same, and nothing is reserved for later
 *     t    most                   0, granted           as many as there are, up to `most`
 *     q    ahead, n, cost × n     granted, ms, verdict, value   those in line, until one is refused;
 *                                 the last one granted may use it only in so many ms, at most `ahead`
 *     l                           number × width       the state itself, which stays as it is
 *     s    outcome, cost, used, dueAt                  how a call went
 *     h    hits                                        what others served
 *
 * The first answer is the time on Redis's clock: the only one that counts; `late 17…` if it was past
 * the time allowed. What is only told (s, h) is heard all the same. Numbers travel as text
 * that loses nothing (17 digits), states as packed doubles. A key's state is read once and written
 * once, however many asks of a call are about it, and expires by itself when it is as good as new.
 */

import { RULES } from './rules.ts';

/** How long a state that never becomes as good as new is kept without anybody asking: a day. */
const IDLE_MS = 86_400_000;

export const SCRIPT = `${RULES}
local at = 1
local function text() at = at + 1 return ARGV[at - 1] end
local function number() return tonumber(text()) end
local function exact(x) return string.format('%.17g', x) end

local now = tonumber(ARGV[1])
local isHandedIn = now ~= nil -- for tests: how long Redis keeps a state is then for it to say
local by = tonumber(string.match(ARGV[1], '^by (.+)$'))
at = 2
if not isHandedIn then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end

local isLate = by ~= nil and now > by

local parts = {}
for n = 1, number() do
  local kind, numbers = text(), {}
  for i = 1, number() do numbers[i] = number() end
  parts[n] = RULES[kind](numbers)
end
local rule = all(parts)
local FORMAT = '<' .. string.rep('d', rule.width)

local states, changed = {}, {}
local function stateOf(key)
  local s = states[key]
  if s then return s end
  local packed = redis.call('GET', KEYS[key])
  if packed and #packed == 8 * rule.width then
    s = { struct.unpack(FORMAT, packed) }
  else
    s = {}
    rule.start(s, 0, now)
  end
  states[key] = s
  return s
end

local answers = { (isLate and 'late ' or '') .. exact(now) }
local function answer(verdict, value)
  answers[#answers + 1] = verdict
  if value == floor(value) and abs(value) < 1e15 then answers[#answers + 1] = value
  else answers[#answers + 1] = exact(value) end
end

-- For who cannot use a place later: what was reserved is taken back.
local function askNow(s, cost)
  local saved = { unpack(s, 1, rule.width) }
  local verdict, value = rule.ask(s, 0, cost, now)
  if verdict ~= WAIT then return verdict, value end
  for i = 1, rule.width do s[i] = saved[i] end
  return DENY, ceil(value)
end

local OPS = {
  a = function(s) answer(rule.ask(s, 0, number(), now)) end,

  n = function(s) answer(askNow(s, number())) end,

  q = function(s)
    local ahead, granted, dueIn, verdict, value = number(), 0, 0, ALLOW, 0
    for _ = 1, number() do
      local cost = number()
      if verdict ~= DENY then
        verdict, value = askNow(s, cost)
        if verdict == DENY and value ~= NEVER and dueIn == 0 and rule.opensAt then
          local opensAt = rule.opensAt(s, 0)
          if opensAt - now <= ahead and rule.ask(s, 0, cost, opensAt) == ALLOW then
            verdict, dueIn = ALLOW, opensAt - now
          end
        end
        if verdict ~= DENY then granted = granted + 1 end
      end
    end
    answer(granted, dueIn)
    answer(verdict, value)
  end,

  l = function(s)
    for i = 1, rule.width do answers[#answers + 1] = exact(s[i]) end
  end,

  t = function(s)
    local granted = min(number(), rule.available(s, 0, now))
    if granted <= 0 or rule.ask(s, 0, granted, now) ~= ALLOW then granted = 0 end
    answer(ALLOW, granted)
  end,

  s = function(s)
    local ignored, cost, used, dueAt = text() == 'ignored', number(), number(), number()
    if dueAt ~= dueAt then dueAt = now end -- who does not know when says so with NaN
    rule.settle(s, 0, ignored, cost, used, dueAt, now)
  end,

  h = function(s) rule.hits(s, 0, number(), now) end,
}

while at <= #ARGV do
  local op, key = text(), number()
  local s, isTold = stateOf(key), op == 's' or op == 'h'
  if isLate and not isTold then
    s = { unpack(s, 1, rule.width) } -- answered as ever, and nothing is kept
  elseif op ~= 'l' then
    changed[key] = true
  end
  OPS[op](s)
end

for key in pairs(changed) do
  local s = states[key]
  local forgetAt = rule.forgetAt(s, 0)
  if forgetAt <= now and not isHandedIn then
    redis.call('DEL', KEYS[key])
  else
    local ms = ${IDLE_MS}
    if not isHandedIn then ms = min(ceil(forgetAt - now) + 1, ms) end
    redis.call('SET', KEYS[key], struct.pack(FORMAT, unpack(s, 1, rule.width)), 'PX', string.format('%.0f', ms))
  end
end
return answers
`;
