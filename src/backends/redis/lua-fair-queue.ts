/**
 * The fair queue in Lua: one queue in Redis for all processes, beside the commands of the script around it.
 *
 *     command                   reply
 *     f<id> <cost> <ahead>      join the queue, or request a permit at the head of it: - for queued, or a refusal as a, or
 *                               <remaining> <ms> <token>: a permit that is due in <ms>, at most <ahead>
 *                               with the order fair also <tenant>/<flow> <tenant weight> <flow weight>
 *     x<id>                     leave the queue, and give back a permit that was granted
 *     b<process> <id>           heartbeat: <head> <ms until its turn>, below 0 if a call must settle first;
 *                               - if <id> is missing in the queue
 *
 *     message                   to the process of the waiter, on its channel
 *     <id> <ms>                 the waiter is the head, and may request its permit <ms> from now
 *     <id> <ms> <at>            the waiter has a permit, granted at <at> and due in <ms>
 *
 * A queue is the waiter ids in their order (`lua-fair-order.ts`), and the last heartbeat of each process. An id is
 * `process/number/cost`. A head whose process sends no heartbeats is skipped. Whenever another waiter becomes the head, a
 * message tells it its turn, so no waiter polls.
 *
 * The head's request proves that its process is alive. Where the rule says when the next permit opens, the request also
 * grants the permits that open within <ahead> to the waiters behind it:
 *
 *     request of a ──▶ a: now · b: in 10 ms · c: in 20 ms · d: "your turn in 30 ms" ──▶ request of d ──▶ …
 *
 * Permits are recorded for a while. A waiter that requests again has not got its permit: it is given back, and the
 * waiter is the head again.
 *
 * The script around it defines `peek(key, cost)` and `admit(key, id, cost, ahead)`, which return a verdict and its value,
 * `release(key, id)`, which gives a recorded permit back, and `isOnItsWay(key, id)`.
 */

import type { RuleSpec } from '../../policies/policy.ts';
import { type FleetOrder, ORDER_LUA } from './lua-fair-order.ts';

/** A process without a heartbeat for this long is gone. Heartbeats are sent three times as often. */
export const PROCESS_TIMEOUT_MS = 3000;

/** Redis drops a queue without heartbeats for this long. */
export const QUEUE_TTL_MS = 20 * PROCESS_TIMEOUT_MS;

/** Permits granted by one request: Redis does nothing else while it runs a script. */
const MAX_GRANTS = 64;

/** Whether permits are granted before they open: by a spacing, which knows the instant, and by buckets, as debt. */
export const grantsAhead = (specs: readonly RuleSpec[]): boolean =>
  specs.every(({ kind, params }) => kind === 'bucket' && params[2] === Infinity) ||
  (specs.length === 1 && specs[0].kind === 'spacing');

export const fairQueueLua = (maxGrants: number, order: FleetOrder): string => `
local QUEUE_COMMANDS, PROCESS_TIMEOUT_MS, MAX_GRANTS = {}, ${PROCESS_TIMEOUT_MS}, ${maxGrants}
local function heartbeatsOf(key) return key .. ':heartbeats' end
local function processOf(id) return match(id, '^([^/]+)') end
local function costOf(id) return tonumber(match(id, '([^/]+)$')) end
${ORDER_LUA[order]}
local function notify(id, text)
  call('PUBLISH', 'sluice:turn:' .. processOf(id), id .. ' ' .. text)
end

-- The first waiter of a live process.
local function liveHeadOf(key)
  while true do
    local head = headOf(key)
    if not head then return nil end
    local seenAt = tonumber(call('HGET', heartbeatsOf(key), processOf(head)) or '0')
    if now - seenAt <= PROCESS_TIMEOUT_MS then return head end
    leave(key, head)
    call('HDEL', heartbeatsOf(key), processOf(head))
  end
end

local function msUntilTurn(key, id)
  local verdict, value = peek(key, costOf(id))
  if verdict == ALLOW then return 0 end
  if verdict == DENY and value == NEVER then return 0 end -- its request is refused
  return ceil(value)
end

-- Sends the head its turn. Without a head the heartbeats are dropped with the queue.
local function notifyHead(key)
  local head = liveHeadOf(key)
  if not head then
    call('DEL', heartbeatsOf(key))
    return
  end
  local ms = msUntilTurn(key, head)
  if ms >= 0 then notify(head, exact(ms)) end -- else a call must settle first, and its settlement notifies the head
end

-- Grants further permits to the waiters at the front, by message.
local function grantFront(key, ahead)
  for n = 1, MAX_GRANTS do
    local head = liveHeadOf(key)
    if not head then return end
    local verdict, _, dueIn = admit(key, head, costOf(head), ahead)
    if verdict ~= ALLOW then return end
    serve(key, head)
    notify(head, exact(dueIn) .. ' ' .. exact(now))
  end
end

local function expireQueue(key)
  for _, name in ipairs(queueKeysOf(key)) do call('PEXPIRE', name, ${QUEUE_TTL_MS}) end
end

local function recordHeartbeat(key, process)
  call('HSET', heartbeatsOf(key), process, exact(now))
  call('PEXPIRE', heartbeatsOf(key), ${QUEUE_TTL_MS})
end

QUEUE_COMMANDS.f = function(rest, key)
  local id, cost, ahead, flow = match(rest, '(%S+) (%S+) (%S+) ?(.*)')
  ahead = tonumber(ahead)
  recordHeartbeat(key, processOf(id))
  if release(key, id) then joinFirst(key, id, flow) end -- its permit was lost on the way
  local head = liveHeadOf(key)
  if head and head ~= id and not isQueued(key, id) then
    local mayLead = join(key, id, flow)
    expireQueue(key)
    if mayLead then head = liveHeadOf(key) end
  end
  if head and head ~= id then return '-' end
  local verdict, value, dueIn, token = admit(key, id, tonumber(cost), ahead)
  if verdict == DENY and value ~= NEVER then
    if not head then
      join(key, id, flow)
      expireQueue(key)
    end
    return encodeDecision(verdict, value)
  end
  if head and verdict == DENY then leave(key, id) elseif head then serve(key, id) end
  grantFront(key, ahead)
  notifyHead(key)
  if verdict == DENY then return encodeDecision(verdict, value) end
  return encodeDecision(verdict, value) .. ' ' .. exact(dueIn) .. ' ' .. exact(token or 0)
end

QUEUE_COMMANDS.x = function(id, key)
  local head = headOf(key)
  local isReleased = release(key, id)
  leave(key, id)
  if isReleased or head == id then notifyHead(key) end
  return 0
end

QUEUE_COMMANDS.b = function(rest, key)
  local process, queuedId = match(rest, '(%S+) (%S*)')
  recordHeartbeat(key, process)
  expireQueue(key)
  local before = headOf(key)
  local head = liveHeadOf(key)
  if not head or head ~= before then notifyHead(key) end
  if queuedId ~= '' and not isOnItsWay(key, queuedId) and not isQueued(key, queuedId) then
    return '-'
  end
  if not head then return '' end
  return head .. ' ' .. exact(msUntilTurn(key, head))
end
`;

/** For limits that time opens. Recorded permits are a sorted set: id ─▶ due at. */
export const timedFairQueueLua = (specs: readonly RuleSpec[], order: FleetOrder): string => `
local GRANTS_AHEAD = ${grantsAhead(specs)}
local function grantsKeyOf(key) return key .. ':grants' end

local function peek(key, cost)
  return rule.check({ unpack(stateOf(key), 1, rule.width) }, 0, cost, now)
end

local function checkAhead(s, cost, ahead)
  local verdict, value = checkNow(s, cost)
  if verdict ~= DENY or value == NEVER or not GRANTS_AHEAD then return verdict, value, 0 end
  local opensAt = rule.opensAt and rule.opensAt(s, 0)
  local dueIn = value
  if opensAt then dueIn = opensAt - now end
  if dueIn > ahead then return verdict, value, 0 end
  if opensAt then rule.check(s, 0, cost, opensAt) else rule.hits(s, 0, cost, now) end
  return ALLOW, 0, dueIn
end

local function admit(key, id, cost, ahead)
  local verdict, value, dueIn = checkAhead(stateOf(key), cost, ahead)
  if verdict == ALLOW then
    local grants = grantsKeyOf(key)
    call('ZREMRANGEBYSCORE', grants, '-inf', now - ${PROCESS_TIMEOUT_MS})
    call('ZADD', grants, exact(now + dueIn), id)
    call('PEXPIRE', grants, ${2 * PROCESS_TIMEOUT_MS})
  end
  return verdict, value, dueIn
end

local function release(key, id)
  local grants = grantsKeyOf(key)
  local dueAt = tonumber(call('ZSCORE', grants, id) or nil)
  if not dueAt then return false end
  local last = call('ZREVRANGE', grants, 0, 0, 'WITHSCORES')
  call('ZREM', grants, id)
  if GRANTS_AHEAD and dueAt < tonumber(last[2]) then return true end -- later ones keep their instants: it is lost
  local cost = tonumber(match(id, '([^/]+)$'))
  rule.settle(stateOf(key), 0, true, cost, cost, dueAt, now)
  return true
end

-- Its message may not have arrived yet.
local function isOnItsWay(key, id)
  local dueAt = tonumber(call('ZSCORE', grantsKeyOf(key), id) or nil)
  return dueAt ~= nil and now - dueAt < ${PROCESS_TIMEOUT_MS / 3}
end
${fairQueueLua(MAX_GRANTS, order)}`;
