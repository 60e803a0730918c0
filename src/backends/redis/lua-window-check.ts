/**
 * The check of a sliding window as a flat script, for the reason given in `lua-bucket.ts`.
 *
 * The counts of a key are summed once per call and then kept with it: a key may occur several times in a batch.
 */

import type { RuleSpec } from '../../policies/policy.ts';
import { CHECK_BEGIN_LUA } from './lua-check-begin.ts';
import { luaNumber } from './lua-rules.ts';

export function windowCheckScript({ params }: RuleSpec, maxTtlMs: number, read: string): string {
  const [limit, steps, stepMs] = params.map(luaNumber);
  const width = params[1] + 2;
  return `
local call, floor, ceil, max = redis.call, math.floor, math.ceil, math.max
local pack, unpackState = struct.pack, struct.unpack
local LIMIT, STEPS, STEP_MS = ${limit}, ${steps}, ${stepMs}
local RING, FORMAT, BYTES = STEPS + 1, '<${'d'.repeat(width)}', ${8 * width}
${read}
${CHECK_BEGIN_LUA}
local step = floor(now / STEP_MS)
if (step + 1) * STEP_MS <= now then step = step + 1 end

local states, changed = {}, {}

for i = 1, #KEYS do
  local key = KEYS[i]
  if not isUniform then cost = tonumber(string.sub(ARGV[i + 1], 2)) end
  local s = states[key]
  if not s then
    local packed = read(key)
    if packed and #packed == BYTES then
      s = { unpackState(FORMAT, packed) }
    else
      s = { 0 / 0 }
      for n = 2, ${width} do s[n] = 0 end
    end
    states[key] = s
    if isTimeGiven then changed[key] = s end
  end

  -- What counts now: all but the steps between the last one and this one, whose places are taken again.
  local last = s[1]
  local isCounted = cost > 0 and cost <= LIMIT
  local sum = 0
  if step > last then
    local from = max(last + 1, step - STEPS)
    if isCounted then
      if s[2 + last % RING] < 0 then s[2 + last % RING] = 0 end -- borrowed and not used
      for cleared = from, step do s[2 + cleared % RING] = 0 end
      s[1], last = step, step
      for n = 2, ${width} do sum = sum + s[n] end
    else
      local copy = { unpack(s) }
      copy[2 + last % RING] = max(0, copy[2 + last % RING])
      for cleared = from, step do copy[2 + cleared % RING] = 0 end
      for n = 2, ${width} do sum = sum + copy[n] end
    end
  else
    if last ~= last and isCounted then s[1], last = step, step end
    for n = 2, ${width} do sum = sum + s[n] end
  end

  local remaining = LIMIT - sum - cost
  if cost == 0 then
    replies[i + 1] = max(0, remaining)
  elseif cost > LIMIT then
    replies[i + 1] = -1
  elseif remaining >= 0 then
    replies[i + 1] = remaining
    if not isLate then
      local index = 2 + last % RING
      s[index], changed[key] = s[index] + cost, s
    end
  else
    replies[i + 1] = -1
    local missing = -remaining
    for oldest = last - STEPS, last do
      missing = missing - s[2 + oldest % RING]
      if missing <= 0 then
        replies[i + 1] = -2 - max(1, ceil((oldest + RING) * STEP_MS - now))
        break
      end
    end
  end
  local reply = replies[i + 1]
  if reply ~= floor(reply) then replies[i + 1] = string.format('%.17g', reply) end
end

for key, s in pairs(changed) do
  local newest, leavesAt = s[1], -math.huge
  for oldest = newest, newest - STEPS, -1 do
    if s[2 + oldest % RING] > 0 then
      leavesAt = (oldest + RING) * STEP_MS
      break
    end
  end
  local ms = ceil(leavesAt - now) + 1
  if isTimeGiven or ms > ${maxTtlMs} then ms = ${maxTtlMs} end
  call('SET', key, pack(FORMAT, unpack(s)), 'PX', ms)
end
return replies
`;
}
