/** The check of a quota as a flat script, like `lua-bucket.ts`. A call has one instant and at most one calendar look-up. */

import type { RuleSpec } from '../../policies/policy.ts';
import { CHECK_BEGIN_LUA } from './lua-check-begin.ts';
import { CALENDAR_LUA, zoneLua } from './lua-quota.ts';
import { luaNumber } from './lua-rules.ts';

export function quotaCheckScript(spec: RuleSpec, maxTtlMs: number, read: string): string {
  const [limit, calendarId, ...period] = spec.params.map(luaNumber);
  return `
local call, floor, ceil, pack, unpackState = redis.call, math.floor, math.ceil, struct.pack, struct.unpack
local LIMIT, CALENDAR_ID = ${limit}, ${calendarId}
${read}
${CALENDAR_LUA}
${CHECK_BEGIN_LUA}
local ends, useds, calendars, changed = {}, {}, {}, {}
local endNow -- of the period of this instant, once it is needed

for i = 1, #KEYS do
  local key = KEYS[i]
  if not isUniform then cost = tonumber(string.sub(ARGV[i + 1], 2)) end
  local endsAt, used, calendar = ends[key], useds[key], calendars[key]
  if not used then
    local packed = read(key)
    if packed and #packed == 24 then endsAt, used, calendar = unpackState('<ddd', packed)
    else endsAt, used, calendar = 0 / 0, 0, CALENDAR_ID end
    ends[key], useds[key], calendars[key] = endsAt, used, calendar
    if isTimeGiven then changed[key] = true end
  end

  local isSame = now < endsAt
  if not isSame then used = 0 end
  local left = LIMIT - (used + cost)
  if cost > LIMIT then
    replies[i + 1] = -1
  else
    if cost > 0 and not (isSame and calendar == CALENDAR_ID) then
      endNow = endNow or periodEnd(${[...period, ...zoneLua(spec.zone)].join(', ')}, now)
      endsAt = endNow
      if not isLate then
        ends[key], useds[key], calendars[key], changed[key] = endNow, used, CALENDAR_ID, true
      end
    end
    if left >= 0 or cost == 0 then
      if left < 0 then left = 0 end
      replies[i + 1] = left == floor(left) and left or string.format('%.17g', left)
      if cost > 0 and not isLate then useds[key], changed[key] = used + cost, true end
    else
      local ms = ceil(endsAt - now)
      replies[i + 1] = -2 - (ms > 1 and ms or 1)
    end
  end
end

for key in pairs(changed) do
  local ms = ${maxTtlMs}
  if not isTimeGiven and ends[key] - now < ms then ms = ceil(ends[key] - now) + 1 end
  call('SET', key, pack('<ddd', ends[key], useds[key], calendars[key]), 'PX', ms)
end
return replies
`;
}
