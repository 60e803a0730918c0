/**
 * The check of a token bucket as a flat script: the arithmetic of `lua-rules.ts` without functions. Creating them in
 * every call takes Redis as long as running them, so this script is about twice as fast.
 */

import type { RuleSpec } from '../../policies/policy.ts';
import { CHECK_BEGIN_LUA } from './lua-check-begin.ts';
import { luaNumber } from './lua-rules.ts';

export function bucketCheckScript({ params }: RuleSpec, maxTtlMs: number, read: string): string {
  const [perMs, burst, , tolerance] = params.map(luaNumber);
  return `
local call, floor, ceil = redis.call, math.floor, math.ceil
local PER_MS, BURST, TOLERANCE, TO_NEIGHBOUR = ${perMs}, ${burst}, ${tolerance}, 0.6 * 2.220446049250313e-16
local FULL = BURST + TOLERANCE
${read}
${CHECK_BEGIN_LUA}
local spents, ats, changed = {}, {}, {}

for i = 1, #KEYS do
  local key = KEYS[i]
  if not isUniform then cost = tonumber(string.sub(ARGV[i + 1], 2)) end
  local spent, at = spents[key], ats[key]
  if not spent then
    local packed = read(key)
    if packed and #packed == 16 then spent, at = struct.unpack('<dd', packed) else spent, at = 0, now end
    spents[key], ats[key] = spent, at
    if isTimeGiven then changed[key] = true end
  end

  local level = spent
  if now > at then
    level = spent - (now - at) * PER_MS
    if level < 0 then level = 0 end
  end
  local after = level + cost
  if after <= FULL then
    local left = floor(BURST - after + TOLERANCE)
    replies[i + 1] = left > 0 and left or 0
    if cost > 0 and not isLate then
      spents[key], changed[key] = after, true
      if now > at then ats[key] = now end
    end
  elseif cost > FULL then
    replies[i + 1] = -1
  elseif cost == 0 then
    replies[i + 1] = 0
  else
    local clockLag = at > now and at - now or 0
    local ms = ceil(clockLag + (after - BURST - TOLERANCE) / PER_MS)
    if ms < 1 then ms = 1 end
    local elapsed, levelThen = now + ms - at, spent
    if elapsed > 0 then
      levelThen = spent - elapsed * PER_MS
      if levelThen < 0 then levelThen = 0 end
    end
    if levelThen + cost > FULL then ms = ms + 1 end
    replies[i + 1] = -2 - ms
  end
end

for key in pairs(changed) do
  local at, span = ats[key], spents[key] / PER_MS
  local fullAt = at + span
  if fullAt - at < span then fullAt = fullAt + math.abs(fullAt) * TO_NEIGHBOUR end
  if fullAt <= now and not isTimeGiven then
    call('DEL', key)
  else
    local ms = ceil(fullAt - now) + 1
    if isTimeGiven or ms > ${maxTtlMs} then ms = ${maxTtlMs} end
    call('SET', key, struct.pack('<dd', spents[key], at), 'PX', ms)
  end
end
return replies
`;
}
