/**
 * The fair queue in Lua: one queue in Redis for all processes, besides the commands of the surrounding script.
 *
 *     command                   reply
 *     f<id> <cost> <ahead>      join the queue, or request a permit at the head of it: - for queued, or a refusal as a, or
 *                               <remaining> <ms> <token>: a permit that is due in <ms>, at most <ahead>
 *                               with the order fair also <tenant>/<flow> <tenant weight> <flow weight>
 *     x<id>                     leave the queue, and give back a permit that was granted
 *     x<id> queued              leave the queue; a permit that was granted meanwhile is in use
 *     b<process> <ahead> <id>   heartbeat: <head> <ms until its turn>, below 0 if a call must settle first, and of several
 *                               rules <number of the one that refuses>;
 *                               - if <id> is missing in the queue
 *
 *     message                   to the process of the waiter, on its channel
 *     <id> turn <ms> <at>       at <at> the waiter was the head, and its permit opens <ms> later
 *     <id> permit <ms> <at>     the waiter has a permit, granted at <at> and due <ms> later
 *     <id> late 0 <at>          no permit is due before the deadline of the waiter, and it has left the queue
 *
 * A queue is the waiter ids in their order (`lua-fair-order.ts`), and the last heartbeat of each process. An id is
 * `process/number/deadline/cost`, with the deadline of its caller on Redis's clock. Whenever another waiter becomes the head, a message tells it its turn, so no waiter polls.
 *
 * Work-conserving: each f and b grants the open permits to the waiters at the front. Where the rule knows when the next
 * permits open, it also grants those that open within <ahead>. So no single process has to be on time:
 *
 *     request of a ──▶ a: now · b: in 10 ms · c: in 20 ms · d: "your turn in 30 ms" ──▶ request of d, or of any other ──▶ …
 *
 * A head is overtaken if its process has no connection that receives the message, or has sent nothing for some time. It
 * is set aside, and returns to the front with the next command of its process. Not every server counts the receivers of
 * a message (a cluster counts one node), and a new process subscribes while it waits. So heartbeats have the mark `u`
 * until a message to the process was counted.
 *
 * In a queue of callers with deadlines, most heads are close to theirs. A head whose permit would be due too late gets
 * none; otherwise permits granted ahead would be lost with it.
 *
 * Permits are recorded for some time. A request that crossed its permit gets that permit. A request long after the due
 * time has not received it: the permit is given back, and the waiter is the head again.
 *
 * The surrounding script defines `peek(key, cost)`, which returns the result of a check without charging, and
 * `admit(key, id, cost, ahead)`, which returns verdict, value, ms until it is due, fencing token and the number of the
 * refusing rule; `release(key, id)`, which gives a recorded permit back, or returns its instant too if later permits
 * prevent that; `record(key, id, dueAt)` and `grantOnItsWay(key, id)`. It calls `serveQueues()` at its end.
 */

import type { Policy } from '../../policies/policy.ts';
import { hasInterval, keepsDebt } from '../../policies/rules.ts';
import { type FleetOrder, ORDER_LUA } from './lua-fair-order.ts';

/** A process that sends nothing for this long is overtaken. Heartbeats are sent three times as often. */
export const PROCESS_TIMEOUT_MS = 1500;

/** A permit is lost if its message has not arrived this long after its due time. */
const MESSAGE_TIMEOUT_MS = 1000;

/** How long a permit is recorded after its due time. */
const GRANT_MEMORY_MS = 3 * MESSAGE_TIMEOUT_MS;

/** Redis drops a queue without heartbeats after this time. */
export const QUEUE_TTL_MS = 60_000;

/** The most permits that one call grants to waiters at the front: Redis does nothing else while it runs a script. */
const MAX_GRANTS = 256;

/** Whether permits are granted before they open: by a spacing, which knows the instant, and by buckets, as debt. */
export const grantsAhead = (limit: Policy): boolean =>
  limit.rules.every((rule) => keepsDebt(rule) && rule.policy.share?.isAdditive) ||
  (limit.rules.length === 1 && hasInterval(limit));

/** Lua that reads a waiter id. */
export const WAITER_LUA = `
local TOO_LATE = 3
local function costOf(id) return tonumber(match(id, '([^/]+)$')) end
local function deadlineOf(id) return tonumber(match(id, '^[^/]+/[^/]+/([^/]+)/') or nil) or math.huge end
`;

export const fairQueueLua = (maxGrants: number, order: FleetOrder): string => `
local QUEUE_COMMANDS, PROCESS_TIMEOUT_MS, MAX_GRANTS = {}, ${PROCESS_TIMEOUT_MS}, ${maxGrants}
local function heartbeatsOf(key) return key .. ':heartbeats' end
local function asideOf(key, process) return key .. ':aside:' .. process end
local function processOf(id) return match(id, '^([^/]+)') end
${ORDER_LUA[order]}
local function heartbeatOf(key, id)
  local at, mark = match(call('HGET', heartbeatsOf(key), processOf(id)) or '0', '(%S+) ?(%S*)')
  return tonumber(at), mark
end

-- False if the process of the waiter is known to receive nothing.
local function notify(key, id, kind, ms)
  local text = id .. ' ' .. kind .. ' ' .. exact(ms) .. ' ' .. exact(now)
  if call('PUBLISH', 'sluice:turn:' .. processOf(id), text) > 0 then return true end
  local _, mark = heartbeatOf(key, id)
  return mark == 'u'
end

local function setAside(key, id)
  local aside = asideOf(key, processOf(id))
  call('RPUSH', aside, id .. ' ' .. flowOf(key, id))
  call('PEXPIRE', aside, ${QUEUE_TTL_MS})
  leave(key, id)
end

-- Of each queue that this call touches: the head that knows its turn, false for none, and how far ahead permits are granted.
local informed, aheads = {}, {}
local function touch(key)
  if informed[key] == nil then informed[key] = headOf(key) or false end
end

-- The process is alive: its waiters that were set aside are at the front again.
local function takeBack(key, process)
  local aside = asideOf(key, process)
  local entry = call('RPOP', aside)
  while entry do
    local id, flow = match(entry, '(%S+) (.*)')
    joinFirst(key, id, flow)
    informed[key] = false
    entry = call('RPOP', aside)
  end
end

-- The first waiter of a live process. A clock that was set makes processes silent until their next heartbeat.
local function liveHeadOf(key)
  while true do
    local head = headOf(key)
    if not head then return nil end
    if math.abs(now - heartbeatOf(key, head)) <= PROCESS_TIMEOUT_MS then return head end
    setAside(key, head)
  end
end

local function msUntilTurn(key, id)
  local verdict, value, _, refusing = peek(key, costOf(id))
  if verdict == ALLOW then return 0 end
  if verdict == DENY and value == NEVER then return 0 end -- its request is refused
  return ceil(value), refusing
end

-- Sends the head its turn. Without a head the heartbeats are dropped with the queue.
local function notifyHead(key)
  while true do
    local head = liveHeadOf(key)
    if not head then
      call('DEL', heartbeatsOf(key))
      return
    end
    local ms = msUntilTurn(key, head)
    if ms < 0 then return end -- a call must settle first, and its settlement notifies the head
    if notify(key, head, 'turn', ms) then return end
    setAside(key, head)
  end
end

local function refuse(key, id)
  notify(key, id, 'late', 0)
  leave(key, id)
end

-- The next waiter of the same cost gets the permit of one that left. Else it is lost: later ones keep their instants.
local function passOn(key, id, dueAt)
  for n = 1, dueAt >= now and MAX_GRANTS or 0 do
    local head = liveHeadOf(key)
    if not head or costOf(head) ~= costOf(id) then return end
    if deadlineOf(head) < dueAt then
      refuse(key, head)
    elseif notify(key, head, 'permit', dueAt - now) then
      record(key, head, dueAt)
      serve(key, head)
      return
    else
      setAside(key, head)
    end
  end
end

-- Grants further permits to the waiters at the front, by message.
local function grantFront(key, ahead)
  for n = 1, MAX_GRANTS do
    local head = liveHeadOf(key)
    if not head then return end
    local verdict, _, dueIn = admit(key, head, costOf(head), ahead)
    if verdict == TOO_LATE then
      refuse(key, head)
    elseif verdict ~= ALLOW then
      return
    elseif notify(key, head, 'permit', dueIn) then
      serve(key, head)
    else
      release(key, head)
      setAside(key, head)
    end
  end
end

local function serveFront(key, ahead)
  grantFront(key, ahead)
  local head = headOf(key)
  if not head or head ~= informed[key] then notifyHead(key) end
end

-- At the end of the script, once for all its commands.
local function serveQueues()
  for key, ahead in pairs(aheads) do serveFront(key, ahead) end
end

local function expireQueue(key)
  for _, name in ipairs(queueKeysOf(key)) do call('PEXPIRE', name, ${QUEUE_TTL_MS}) end
end

local function recordHeartbeat(key, process, mark)
  call('HSET', heartbeatsOf(key), process, exact(now) .. mark)
  call('PEXPIRE', heartbeatsOf(key), ${QUEUE_TTL_MS})
  takeBack(key, process)
end

QUEUE_COMMANDS.f = function(rest, key)
  local id, cost, ahead, flow = match(rest, '(%S+) (%S+) (%S+) ?(.*)')
  touch(key)
  aheads[key] = math.max(aheads[key] or 0, tonumber(ahead))
  local at, mark = heartbeatOf(key, id)
  recordHeartbeat(key, processOf(id), (at == 0 or mark == 'u') and ' u' or '')
  local dueAt = grantOnItsWay(key, id)
  if dueAt then return '0 ' .. exact(dueAt - now) .. ' 0' end
  if release(key, id) then joinFirst(key, id, flow) end -- its permit was lost
  local head = liveHeadOf(key)
  if head and head ~= id and not isQueued(key, id) then
    local mayLead = join(key, id, flow)
    expireQueue(key)
    if mayLead then head = liveHeadOf(key) end
  end
  if head and head ~= id then return '-' end
  local verdict, value, dueIn, token, refusing = admit(key, id, tonumber(cost), tonumber(ahead))
  if verdict == DENY and value ~= NEVER then
    if not head then
      join(key, id, flow)
      expireQueue(key)
    end
    informed[key] = id
    return encodeDecision(verdict, value, nil, refusing)
  end
  if head and verdict == ALLOW then serve(key, id) elseif head then leave(key, id) end
  if verdict == TOO_LATE then return 'late' end
  if verdict == DENY then return encodeDecision(verdict, value, nil, refusing) end
  return encodeDecision(verdict, value) .. ' ' .. exact(dueIn) .. ' ' .. exact(token or 0)
end

QUEUE_COMMANDS.x = function(rest, key)
  local id, mode = match(rest, '(%S+) ?(%S*)')
  takeBack(key, processOf(id))
  local head = headOf(key)
  local isReleased, dueAt
  if mode ~= 'queued' then isReleased, dueAt = release(key, id) end
  leave(key, id)
  if dueAt then passOn(key, id, dueAt) end
  if isReleased or head == id then notifyHead(key) end
  return 0
end

QUEUE_COMMANDS.b = function(rest, key)
  local process, ahead, queuedId = match(rest, '(%S+) (%S+) ?(%S*)')
  touch(key)
  local isCounted = call('PUBLISH', 'sluice:turn:' .. process, '') > 0
  recordHeartbeat(key, process, isCounted and '' or ' u')
  expireQueue(key)
  serveFront(key, tonumber(ahead))
  if queuedId ~= '' and not grantOnItsWay(key, queuedId) and not isQueued(key, queuedId) then
    return '-'
  end
  local head = liveHeadOf(key)
  if not head then return '' end
  local ms, refusing = msUntilTurn(key, head)
  return head .. ' ' .. exact(ms) .. ' ' .. (refusing or '')
end
`;

/** Queue of limits that open with time. Recorded permits are a sorted set: id ─▶ due at. */
export const timedFairQueueLua = (limit: Policy, order: FleetOrder): string => `
local GRANTS_AHEAD = ${grantsAhead(limit)}
local function grantsKeyOf(key) return key .. ':grants' end
${WAITER_LUA}
local function peek(key, cost)
  return rule.check({ unpack(stateOf(key), 1, rule.width) }, 0, cost, now)
end

local function checkAhead(s, cost, ahead, deadline)
  local verdict, value, _, refusing = checkNow(s, cost)
  if verdict ~= DENY or value == NEVER or not GRANTS_AHEAD then return verdict, value, 0, nil, refusing end
  local opensAt = rule.opensAt and rule.opensAt(s, 0)
  local dueIn = value
  if opensAt then dueIn = opensAt - now end
  if dueIn > ahead then return verdict, value, 0, nil, refusing end
  if now + dueIn > deadline then return TOO_LATE, value, 0 end
  if opensAt then rule.check(s, 0, cost, opensAt) else rule.hits(s, 0, cost, now) end
  return ALLOW, 0, dueIn
end

local function record(key, id, dueAt)
  local grants = grantsKeyOf(key)
  call('ZREMRANGEBYSCORE', grants, '-inf', now - ${GRANT_MEMORY_MS})
  call('ZADD', grants, exact(dueAt), id)
  call('PEXPIRE', grants, ${2 * GRANT_MEMORY_MS})
end

local function admit(key, id, cost, ahead)
  local verdict, value, dueIn, token, refusing = checkAhead(stateOf(key), cost, ahead, deadlineOf(id))
  if verdict == ALLOW then record(key, id, now + dueIn) end
  return verdict, value, dueIn, token, refusing
end

local function release(key, id)
  local grants = grantsKeyOf(key)
  local dueAt = tonumber(call('ZSCORE', grants, id) or nil)
  if not dueAt then return false end
  local last = call('ZREVRANGE', grants, 0, 0, 'WITHSCORES')
  call('ZREM', grants, id)
  if GRANTS_AHEAD and dueAt < tonumber(last[2]) then return true, dueAt end -- later ones keep their instants
  local cost = costOf(id)
  rule.settle(stateOf(key), 0, true, cost, cost, dueAt, now)
  return true
end

-- When the permit of a waiter is due, if the message may not have arrived yet.
local function grantOnItsWay(key, id)
  local dueAt = tonumber(call('ZSCORE', grantsKeyOf(key), id) or nil)
  local isRecent = dueAt and now - dueAt < ${MESSAGE_TIMEOUT_MS} and dueAt - now < ${GRANT_MEMORY_MS}
  return isRecent and dueAt
end
${fairQueueLua(MAX_GRANTS, order)}`;
