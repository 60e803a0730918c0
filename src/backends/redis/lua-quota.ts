/**
 * The rule `quota` in Lua: `policies/quota.ts` and `policies/calendar.ts`, for quotas that Redis decides.
 *
 * Redis determines the period by its own clock. A client sends no boundary with a call: the script contains the
 * calendar with the changes of its time zone. So a client's clock cannot reset or extend a period. The calendar is used
 * only when a period begins: before that, a check compares the end in the key's state.
 */

import type { TimeZone } from '../../policies/time-zone.ts';

/** Lua for the end of the period that contains an instant. Its functions are created only when it is called. */
export const CALENDAR_LUA = `
local function periodEnd(months, length, origin, day, changes, at)
  local floor, max, min = math.floor, math.max, math.min
  local DAY = 86400000

  local function firstDayOf(month)
    local fromMarch = month + 23638
    local year = floor(fromMarch / 12)
    local days = floor((153 * (fromMarch - year * 12) + 2) / 5)
    return year * 365 + floor(year / 4) - floor(year / 100) + floor(year / 400) + days - 719468
  end

  local function monthOf(days)
    local estimate = floor(days / 30.436875)
    if days < firstDayOf(estimate) then return estimate - 1 end
    if days < firstDayOf(estimate + 1) then return estimate end
    return estimate + 1
  end

  local function monthBoundary(month)
    local start = firstDayOf(month)
    return (start + min(day, firstDayOf(month + 1) - start) - 1) * DAY + length
  end

  local function nextBoundary(here)
    if months == 0 then return origin + (floor((here - origin) / length) + 1) * length end
    local first = origin + floor((monthOf(floor(here / DAY)) - origin) / months) * months
    local boundary = monthBoundary(first)
    if boundary > here then return boundary end
    return monthBoundary(first + months)
  end

  local starts, offsets = changes()
  local isRepeated = months == 0 and length <= 3600000
  local n = 1
  while n < #starts and starts[n + 1] <= at do n = n + 1 end
  local here = at + offsets[n]
  if not isRepeated and n > 1 then here = max(here, starts[n] + offsets[n - 1] - 1) end
  local boundary = nextBoundary(here)
  while n < #starts and boundary - offsets[n] >= starts[n + 1] do
    n = n + 1
    if isRepeated then boundary = min(boundary, nextBoundary(starts[n] + offsets[n] - 1)) end
    if boundary - offsets[n] <= starts[n] then return starts[n] end
  end
  return boundary - offsets[n]
end
`;

export const QUOTA_LUA = `${CALENDAR_LUA}
local function quota(limit, calendarId, months, length, origin, day, changes)
  local function endAt(at) return periodEnd(months, length, origin, day, changes, at) end

  local function open(s, o, now)
    local isSame = now < s[o + 1]
    if isSame and s[o + 3] == calendarId then return end
    if not isSame then s[o + 2] = 0 end
    s[o + 1], s[o + 3] = endAt(now), calendarId
  end

  local function remaining(s, o, now)
    if now < s[o + 1] then return limit - s[o + 2] end
    return limit
  end

  return {
    width = 3,
    init = function(s, o, now) s[o + 1], s[o + 2], s[o + 3] = 0 / 0, 0, calendarId end,
    check = function(s, o, cost, now)
      if cost == 0 then return ALLOW, max(0, remaining(s, o, now)) end
      if cost > limit then return DENY, NEVER end
      open(s, o, now)
      local after = s[o + 2] + cost
      if after > limit then return DENY, max(1, ceil(s[o + 1] - now)) end
      s[o + 2] = after
      return ALLOW, limit - after
    end,
--[[not in check-only scripts
    available = function(s, o, now) return max(0, floor(remaining(s, o, now))) end,
    settle = function(s, o, ignored, cost, used, dueAt, now)
      local unused = cost - used
      if ignored then unused = cost end
      if unused < 0 then
        open(s, o, now)
        s[o + 2] = s[o + 2] - unused
      elseif unused > 0 and now < s[o + 1] and endAt(dueAt) == s[o + 1] then
        s[o + 2] = max(0, s[o + 2] - unused)
      end
    end,
    hits = function(s, o, n, now)
      open(s, o, now)
      s[o + 2] = s[o + 2] + n
    end,
--]]
    freshAt = function(s, o)
      if s[o + 1] ~= s[o + 1] then return -huge end
      return s[o + 1]
    end,
  }
end
`;

/** The last parameter of the rule: a function, because most calls need no calendar. */
export const zoneLua = (zone: TimeZone | undefined): string[] =>
  zone ? [`function() return {${zone.starts}}, {${zone.offsets}} end`] : [];
