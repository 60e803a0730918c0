/**
 * The Lua script of a distributed semaphore: the leases of a key are a sorted set, by their end.
 *
 * KEYS and ARGV as in `lua-script.ts`, with these commands:
 *
 *     n<id> <cost>     acquire a lease: <remaining> 0 <fencing token> · -1 never · -2 when a call settles
 *     t<id> <most>     acquire a lease of as many units as are free, up to <most>: <units> <fencing token> · 0
 *     e<id> <cost>     renew
 *     s<id> <cost> <left>  settle: remove the lease, or all but <left> of its units, and notify the head of the fair queue
 *     l                count calls in flight
 *     p                probe
 *
 * It also has `f`, `x` and `b` of the fair queue. A late renewal extends a lease but does not create one: its call may
 * have settled by then.
 *
 * A fencing token is Redis's time in microseconds, or the last token plus 1. It grows even if Redis has lost its data.
 */

import type { Millis } from '../../core/clock.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { fairQueueLua, WAITER_LUA } from './lua-fair-queue.ts';
import { PROBE_LUA } from './lua-script.ts';

/** Lifetime of a lease that is not renewed. */
export const LEASE_TTL_MS: Millis = 10_000;

/** How long Redis keeps the last fencing token of an idle key. Later tokens are higher by Redis's clock. */
const TOKEN_TTL_MS: Millis = 86_400_000;

/** Lua that reads the leases of a key, with `now` and `isLate`. */
export const LEASES_LUA = `
local LEASE_TTL_MS, TOKEN_TTL_MS = ${LEASE_TTL_MS}, ${TOKEN_TTL_MS}
local function expireLeases(key)
  local expired = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(expired) ~= 'table' then
    -- The clock was set back: no lease lasts longer than a new one, or those of a dead process would stay for as long.
    local last = now + LEASE_TTL_MS
    for _, id in ipairs(call('ZRANGEBYSCORE', key, '(' .. exact(last), '+inf')) do call('ZADD', key, last, id) end
    return
  end
  if not string.find(expired.err, 'WRONGTYPE', 1, true) then error(expired.err, 0) end
  call('DEL', key) -- a foreign value: as an error it would look like an outage
end

local function writeLease(key, id, cost)
  for n = 1, cost do
    if isLate then call('ZADD', key, 'XX', now + LEASE_TTL_MS, id .. '#' .. n)
    else call('ZADD', key, now + LEASE_TTL_MS, id .. '#' .. n) end
  end
  call('PEXPIRE', key, LEASE_TTL_MS)
end

local function nextToken(key)
  local last = redis.pcall('GET', key .. ':token')
  if type(last) ~= 'string' then last = '0' end
  local token = math.max((tonumber(last) or 0) + 1, math.floor(now * 1000))
  call('SET', key .. ':token', exact(token), 'PX', TOKEN_TTL_MS)
  return token
end

local function removeLease(key, id, cost, left)
  local removed = 0
  for n = 1 + (left or 0), cost do removed = removed + call('ZREM', key, id .. '#' .. n) end
  return removed > 0
end
`;

export const semaphoreScript = (most: number, order: FleetOrder | undefined): string => `
local MOST = ${most}
local ALLOW, DENY, NEVER, WHEN_SETTLED = 0, 2, -1, -2
local call, sub, match, ceil = redis.call, string.sub, string.match, math.ceil
local function exact(x) return string.format('%.17g', x) end
local now = tonumber(ARGV[1]) -- tests
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local deadline = tonumber(match(ARGV[1], '^by (.+)$'))
local isLate = deadline ~= nil and now > deadline -- the caller has timed out: no lease is granted
local replies = { (isLate and 'late ' or '') .. exact(now) }

${LEASES_LUA}
local function peek(key, cost)
  local remaining = MOST - call('ZCARD', key) - cost
  if cost > MOST then return DENY, NEVER end
  if remaining < 0 then return DENY, WHEN_SETTLED end
  return ALLOW, remaining
end

local function admit(key, id, cost)
  if isLate then return DENY, WHEN_SETTLED end
  local verdict, value = peek(key, cost)
  if verdict ~= ALLOW then return verdict, value end
  writeLease(key, id, cost)
  return verdict, value, 0, nextToken(key)
end

${WAITER_LUA}
local function release(key, id) return removeLease(key, id, costOf(id)) end
local function grantOnItsWay() return nil end
local function record() end
local function encodeDecision(verdict, value) return value end

${order ? fairQueueLua(0, order) : ''}
for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[#ARGV == 2 and 2 or i + 1]
  local op, rest = sub(text, 1, 1), sub(text, 2)
  local id, cost = match(rest, '(%S+) (%S+)')
  cost = tonumber(cost or '0')
  expireLeases(key)
  local reply = 0
  if op == 'n' then
    -- Sent again, it must not be refused by its own lease. A cost that never fits has none, and the loop would not end.
    if not isLate and cost <= MOST then removeLease(key, id, cost) end
    local verdict, value, _, token = admit(key, id, cost)
    reply = value
    if verdict == ALLOW then reply = value .. ' 0 ' .. exact(token) end
  elseif op == 'e' then
    writeLease(key, id, cost)
  elseif op == 't' and not isLate then
    removeLease(key, id, cost) -- sent again, it counts once
    local units = math.min(cost, MOST - call('ZCARD', key))
    if units > 0 then
      writeLease(key, id, units)
      reply = units .. ' ' .. exact(nextToken(key))
    end
  elseif op == 's' then
    removeLease(key, id, cost, tonumber(match(rest, '%S+ %S+ (%S+)') or '0'))
    ${order ? 'notifyHead(key)' : ''}
  elseif op == 'l' then
    reply = call('ZCARD', key)
  elseif op == 'p' then
    reply = (function() ${PROBE_LUA} end)()
  ${order ? "elseif op == 'x' or not isLate then reply = QUEUE_COMMANDS[op](rest, key) -- late, the queue is not touched" : ''}
  end
  replies[i + 1] = reply
end
${order ? 'serveQueues()' : ''}
return replies
`;
