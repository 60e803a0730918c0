/**
 * The orders of a fair queue in Lua: first come first served, or fair between flows.
 *
 * Both orders define these functions for `lua-fair-queue.ts`: `headOf`, `join`, `joinFirst`, `serve` (the head has its
 * permit), `leave`, `isQueued`, `flowOf` and `queueKeysOf`. `join` returns true if it may have replaced the head.
 *
 * The order `fair` implements the rule of `limiter/fair-wait-queue.ts`. A flow is `tenant/flow`, encoded without spaces
 * and slashes, followed by the weights of both:
 *
 *     :fair:waiters   sorted by name    <tenant>/<flow> <number> <id> <tenant weight> <flow weight>
 *     :fair:ids       hash              id ─▶ its entry in :fair:waiters
 *     :fair:tenants   sorted set        tenant ─▶ start tag
 *     :fair:flows     sorted by name    <tenant> <start tag, 8 bytes that sort as the number does><flow>
 *     :fair:tags      hash              s <tenant>/<flow> ─▶ start tag · v, v <tenant> ─▶ virtual time of a level
 *                                       n, n <tenant> ─▶ members of a level that have waiters
 *
 * All of them are deleted with the last waiter. A permit that is given back does not reduce the tags.
 */

/** The most members of a level, as in `limiter/fair-wait-queue.ts`: beyond it, members without waiters are dropped. */
const MAX_FLOWS = 1024;

/** Determines the next waiter of the fleet. */
export type FleetOrder = 'fifo' | 'fair';

const FIFO_LUA = `
local function queueOf(key) return key .. ':queue' end
local function queueKeysOf(key) return { queueOf(key) } end
local function headOf(key) return call('LINDEX', queueOf(key), 0) end
local function join(key, id)
  call('RPUSH', queueOf(key), id)
  return false
end
local function joinFirst(key, id) call('LPUSH', queueOf(key), id) end
local function serve(key) call('LPOP', queueOf(key)) end
local function leave(key, id) call('LREM', queueOf(key), 1, id) end
local function isQueued(key, id) return call('LPOS', queueOf(key), id) end
local function flowOf() return '' end
`;

const FAIR_LUA = `
local MAX_FLOWS, FIRST_NUMBER = ${MAX_FLOWS}, 5e15
local max = math.max
local function part(key, name) return key .. ':fair:' .. name end
local function queueKeysOf(key)
  return { part(key, 'waiters'), part(key, 'ids'), part(key, 'tenants'), part(key, 'flows'), part(key, 'tags') }
end
local function tagOf(key, field) return tonumber(call('HGET', part(key, 'tags'), field) or '0') end
local function setTag(key, field, value) call('HSET', part(key, 'tags'), field, exact(value)) end
local function add(key, field, n) return call('HINCRBY', part(key, 'tags'), field, n) end
local function firstOf(entries, prefix)
  return call('ZRANGEBYLEX', entries, '[' .. prefix .. ' ', '(' .. prefix .. '!', 'LIMIT', 0, 1)[1]
end
local function flowEntry(tenant, start, flow) return tenant .. ' ' .. struct.pack('>d', start) .. flow end

local function dropFlow(key, tenant, flow, start)
  call('ZREM', part(key, 'flows'), flowEntry(tenant, start, flow))
  call('HDEL', part(key, 'tags'), 's ' .. tenant .. '/' .. flow)
end

local function moveFlow(key, tenant, flow, before, start)
  if before == start then return end
  if before then dropFlow(key, tenant, flow, before) end
  call('ZADD', part(key, 'flows'), 0, flowEntry(tenant, start, flow))
  setTag(key, 's ' .. tenant .. '/' .. flow, start)
end

-- The next waiter of a tenant that has some.
local function headOfTenant(key, tenant)
  while true do
    local entry = firstOf(part(key, 'flows'), tenant)
    if not entry then return nil end
    local flow, start = sub(entry, #tenant + 10), struct.unpack('>d', sub(entry, #tenant + 2, #tenant + 9))
    local waiter = firstOf(part(key, 'waiters'), tenant .. '/' .. flow)
    if waiter then return match(waiter, '^%S+ %S+ (%S+)') end
    dropFlow(key, tenant, flow, start)
    setTag(key, 'v ' .. tenant, max(tagOf(key, 'v ' .. tenant), start))
  end
end

local function headOf(key)
  local tenants = part(key, 'tenants')
  while true do
    local first = call('ZRANGE', tenants, 0, 0, 'WITHSCORES')
    local tenant = first[1]
    if not tenant then return nil end
    local head = tagOf(key, 'n ' .. tenant) > 0 and headOfTenant(key, tenant)
    if head then return head end
    call('ZREM', tenants, tenant)
    setTag(key, 'v', max(tagOf(key, 'v'), tonumber(first[2])))
  end
end

local function joinAs(key, id, text, step)
  local tenant, flow, weights = match(text, '^([^/]*)/(%S*) (%S+ %S+)$')
  local flowId = tenant .. '/' .. flow
  if tagOf(key, 'n ' .. tenant) == 0 then
    local before = tonumber(call('ZSCORE', part(key, 'tenants'), tenant) or '0')
    call('ZADD', part(key, 'tenants'), exact(max(tagOf(key, 'v'), before)), tenant)
    add(key, 'n', 1)
  end
  local isNew = not firstOf(part(key, 'waiters'), flowId)
  if isNew then
    local before = tonumber(call('HGET', part(key, 'tags'), 's ' .. flowId) or nil)
    moveFlow(key, tenant, flow, before, max(tagOf(key, 'v ' .. tenant), before or 0))
    add(key, 'n ' .. tenant, 1)
  end
  local number = string.format('%016.0f', FIRST_NUMBER + step * add(key, 'number', 1))
  local entry = flowId .. ' ' .. number .. ' ' .. id .. ' ' .. weights
  call('ZADD', part(key, 'waiters'), 0, entry)
  call('HSET', part(key, 'ids'), id, entry)
  return isNew
end
local function join(key, id, text) return joinAs(key, id, text, 1) end
local function joinFirst(key, id, text) joinAs(key, id, text, -1) end

local function isQueued(key, id) return call('HEXISTS', part(key, 'ids'), id) == 1 end
-- Its flow and weights, as join takes them.
local function flowOf(key, id)
  local flowId, weights = match(call('HGET', part(key, 'ids'), id), '^(%S*) %S+ %S+ (%S+ %S+)$')
  return flowId .. ' ' .. weights
end

-- The virtual time of a level after a member with this tag was served.
local function advance(key, suffix, increment, start)
  local grown = tagOf(key, 'v' .. suffix) + increment / tagOf(key, 'n' .. suffix)
  setTag(key, 'v' .. suffix, max(grown, start))
end

local function charge(key, tenant, flow, tenantIncrement, flowIncrement)
  local start = tonumber(call('ZSCORE', part(key, 'tenants'), tenant))
  advance(key, '', tenantIncrement, start)
  call('ZADD', part(key, 'tenants'), exact(start + tenantIncrement), tenant)
  local flowStart = tagOf(key, 's ' .. tenant .. '/' .. flow)
  advance(key, ' ' .. tenant, flowIncrement, flowStart)
  moveFlow(key, tenant, flow, flowStart, flowStart + flowIncrement)
end

-- The last waiter of a tenant has left. Of the whole queue: nothing is kept.
local function onTenantLeft(key, tenant)
  if add(key, 'n', -1) <= 0 then
    call('DEL', unpack(queueKeysOf(key)))
    return
  end
  local flows = part(key, 'flows')
  for _, entry in ipairs(call('ZRANGEBYLEX', flows, '[' .. tenant .. ' ', '(' .. tenant .. '!')) do
    call('HDEL', part(key, 'tags'), 's ' .. tenant .. '/' .. sub(entry, #tenant + 10))
  end
  call('ZREMRANGEBYLEX', flows, '[' .. tenant .. ' ', '(' .. tenant .. '!')
  call('HDEL', part(key, 'tags'), 'v ' .. tenant, 'n ' .. tenant)
  if call('ZCARD', part(key, 'tenants')) > MAX_FLOWS then call('ZREM', part(key, 'tenants'), tenant) end
end

local function remove(key, id, isServed)
  local entry = call('HGET', part(key, 'ids'), id)
  if not entry then return end
  local tenant, flow, tenantWeight, flowWeight = match(entry, '^([^/]*)/(%S*) %S+ %S+ (%S+) (%S+)$')
  if isServed then
    local cost = costOf(id)
    charge(key, tenant, flow, cost / tonumber(tenantWeight), cost / tonumber(flowWeight))
  end
  call('HDEL', part(key, 'ids'), id)
  call('ZREM', part(key, 'waiters'), entry)
  if firstOf(part(key, 'waiters'), tenant .. '/' .. flow) then return end
  if add(key, 'n ' .. tenant, -1) <= 0 then
    onTenantLeft(key, tenant)
  elseif call('ZLEXCOUNT', part(key, 'flows'), '[' .. tenant .. ' ', '(' .. tenant .. '!') > MAX_FLOWS then
    dropFlow(key, tenant, flow, tagOf(key, 's ' .. tenant .. '/' .. flow))
  end
end
local function serve(key, id) remove(key, id, true) end
local function leave(key, id) remove(key, id, false) end
`;

export const ORDER_LUA: Readonly<Record<FleetOrder, string>> = { fifo: FIFO_LUA, fair: FAIR_LUA };
