/**
 * The rules of `policies/` in Lua, for limits that Redis decides.
 *
 * A limit shared through Redis must be decided atomically, so the rule runs where its state is. The state of a key is
 * the memory of the Float64Array in `policies/*.ts`: equal numbers in equal order, packed as doubles. A rule has equal
 * arithmetic in equal order. Tests verify both forms: equal random sequences must give equal decisions and leave equal
 * bytes.
 *
 * A rule is a table of functions over a state `s` that begins at index `o + 1`:
 *
 *     init(s, o, now)                  state of a new key
 *     check(s, o, cost, now)           0 allow: remaining · 1 wait: ms · 2 deny: ms, -1 for never; then true if locked, and
 *                                      of a composite the number of the rule that refused
 *     deferTo(s, o, dueAt, cost)       another rule of the composite delays the call until then
 *     available(s, o, now)             the most whole units that a check would grant
 *     settle(s, o, ignored, cost, used, dueAt, now, isTimeUnknown)
 *     hits(s, o, n, now)               hits served elsewhere
 *     report(s, o, what, count, now)   success or failure of attempts, a refusal: lock-out only
 *     recordRefusal(s, o, now)         another rule refused; returns how long the key is locked, and of a composite by which
 *                                      rule: lock-out on refusals only
 *     credit(s, o, tokens, upTo, now)  tokens borrowed from another bucket or window
 *     freshAt(s, o)                when a new key would decide the same; a composite also returns the latest finite
 *                                      time of its rules
 *     opensAt(s, o)                    the exact instant of the next permit; only rules that grant one call at a time
 */

import type { RuleSpec } from '../../policies/policy.ts';
import { LOCKOUT_LUA } from './lua-lockout.ts';
import { QUOTA_LUA, zoneLua } from './lua-quota.ts';
import { WINDOW_LUA } from './lua-window.ts';

const COMMON_LUA = `
local floor, ceil, max, min, abs, huge = math.floor, math.ceil, math.max, math.min, math.abs, math.huge
local ALLOW, WAIT, DENY, NEVER = 0, 1, 2, -1
local MACHINE_EPSILON = 2.220446049250313e-16
local TO_NEIGHBOUR = 0.6 * MACHINE_EPSILON -- 0.6 to 1.2 times the distance to a number's neighbour

-- The first instant at least span after at: far from zero, a sum of milliseconds is rounded.
local function addRoundingUp(at, span)
  local sum = at + span
  if sum - at >= span then return sum end
  return sum + abs(sum) * TO_NEIGHBOUR
end

-- Whole milliseconds from now until at, however sums are rounded.
local function wholeMsUntil(at, now)
  local ms = ceil(at - now)
  return now + ms < at and ms + 1 or ms
end

-- The last instant at least span before at.
local function subtractRoundingDown(at, span)
  local difference = at - span
  if at - difference >= span then return difference end
  return difference - abs(difference) * TO_NEIGHBOUR
end
`;

const BUCKET_LUA = `
local function bucket(perMs, burst, maxDebt, tolerance)
  local maxOveruse = maxDebt
  if maxDebt == huge then maxOveruse = max(burst, perMs * 3600000) end

  local function spentAt(s, o, now)
    local spent, elapsed = s[o + 1], now - s[o + 2]
    if elapsed > 0 then return max(0, spent - elapsed * perMs) end
    return spent
  end

  local function write(s, o, spent, now)
    s[o + 1] = spent
    if now > s[o + 2] then s[o + 2] = now end
  end

  local function tokensLeft(spent) return floor(burst - spent + tolerance) end

  local function fits(s, o, cost, now) return spentAt(s, o, now) + cost <= burst + tolerance end

  local function retryAfter(s, o, cost, now)
    local missing = spentAt(s, o, now) + cost - burst - tolerance
    local clockLag = max(0, s[o + 2] - now)
    local ms = max(1, ceil(clockLag + missing / perMs))
    if fits(s, o, cost, now + ms) then return ms end
    return ms + 1
  end

  return {
    width = 2,
    init = function(s, o, now) s[o + 1], s[o + 2] = 0, now end,
    check = function(s, o, cost, now)
      local after = spentAt(s, o, now) + cost
      if after <= burst + tolerance then
        if cost > 0 then write(s, o, after, now) end
        return ALLOW, max(0, tokensLeft(after))
      end
      if cost > burst + tolerance then return DENY, NEVER end
      if cost == 0 then return ALLOW, 0 end
      return DENY, retryAfter(s, o, cost, now)
    end,
    available = function(s, o, now) return max(0, tokensLeft(spentAt(s, o, now))) end,
    settle = function(s, o, ignored, cost, used, dueAt, now)
      local unused = cost - used
      if ignored then unused = cost end
      if unused == 0 then return end
      local spent = spentAt(s, o, now)
      if unused < 0 then
        return write(s, o, min(spent - unused, max(spent, burst + maxOveruse)), now)
      end
      local refilled = 0
      if ignored and dueAt < s[o + 2] then refilled = max(0, now - dueAt) * perMs end
      s[o + 1] = s[o + 1] - min(max(0, unused - refilled), spent)
    end,
    hits = function(s, o, n, now)
      local spent = spentAt(s, o, now)
      write(s, o, max(spent, min(spent + n, burst + maxDebt)), now)
    end,
    credit = function(s, o, tokens, upTo, now)
      local spent = spentAt(s, o, now)
      write(s, o, max(min(spent, max(0, burst - upTo)), spent - tokens), now)
    end,
    freshAt = function(s, o) return addRoundingUp(s[o + 2], s[o + 1] / perMs) end,
  }
end
`;

const SPACING_LUA = `
local function spacing(every, reserve, expire)
  local EPSILON = 1e-9

  local function nextAtOf(s, o) return addRoundingUp(s[o + 1], every) end

  local function stepAt(at) return addRoundingUp(at, every) - at end

  local function reservedAt(nextAt, now)
    return max(0, ceil((nextAt - now) / stepAt(now) - 1 - EPSILON))
  end

  local function isOpen(nextAt, now) return now >= nextAt or reservedAt(nextAt, now) < reserve end

  local function retryAfter(nextAt, now)
    local ms = max(1, ceil(nextAt - reserve * stepAt(now) - now - EPSILON))
    if isOpen(nextAt, now + ms) then return ms end
    return ms + 1
  end

  return {
    width = 1,
    init = function(s, o) s[o + 1] = -1e300 end, -- never granted
    check = function(s, o, cost, now)
      local nextAt = nextAtOf(s, o)
      if cost > 1 then return DENY, NEVER end
      if now >= nextAt then
        if cost > 0 then
          s[o + 1] = now
          return ALLOW, 0
        end
        return ALLOW, 1
      end
      if cost == 0 then return ALLOW, 0 end
      if isOpen(nextAt, now) then
        s[o + 1] = nextAt
        return WAIT, nextAt - now
      end
      return DENY, retryAfter(nextAt, now)
    end,
--[[not in check-only scripts
    deferTo = function(s, o, dueAt) s[o + 1] = max(s[o + 1], dueAt) end,
    available = function(s, o, now)
      if now >= nextAtOf(s, o) then return 1 end
      return 0
    end,
    settle = function(s, o, ignored, cost, used, dueAt, now)
      if not ignored or cost <= 0 or now > dueAt + expire then return end
      local rounding = 2 * MACHINE_EPSILON * abs(s[o + 1])
      local tolerance = min(every / 4, max(EPSILON * every, rounding))
      if abs(s[o + 1] - dueAt) <= tolerance then s[o + 1] = subtractRoundingDown(dueAt, every) end
    end,
    hits = function(s, o, n, now)
      if n > 0 then s[o + 1] = addRoundingUp(max(nextAtOf(s, o), now), (n - 1) * every) end
    end,
    opensAt = nextAtOf,
--]]
    freshAt = nextAtOf,
  }
end
`;

/** One pool in Redis for all processes, so pool sizes and ranks are left out. */
const RAMP_LUA = `
local function ramp(minRate, maxRate, slope, slopeDown, mode, threshold, coolDown, resumeFor)
  local EPSILON = 1e-9
  local SCHEDULED, RELAXED, ONLY_IF_USED = 0, 1, 2
  resumeFor = resumeFor or huge

  local function clamp(pool) return min(maxRate, max(minRate, pool)) end
  local function wholeTokens(pool) return floor(pool + EPSILON) end

  local function isUsed(s, o)
    local of = s[o + 2]
    return (of - s[o + 3] + EPSILON) * 100 >= threshold * of
  end

  local function nextPool(s, o, gap)
    local pool = s[o + 2]
    if gap > resumeFor then return minRate end
    if mode == SCHEDULED then return clamp(pool + slope * gap) end
    if mode == RELAXED then return clamp(pool + slope) end
    if mode == ONLY_IF_USED then
      if isUsed(s, o) then return clamp(pool + slope) end
      return clamp(pool)
    end
    local silent = max(0, gap - 1 - coolDown)
    local step = -slopeDown
    if isUsed(s, o) then step = slope end
    return clamp(clamp(pool + step) - slopeDown * silent)
  end

  local function open(s, o, second, pool)
    s[o + 1], s[o + 2], s[o + 3], s[o + 4] = second, pool, wholeTokens(pool), 0
  end

  local function advance(s, o, now)
    local second, last = floor(now / 1000), s[o + 1]
    if last ~= last then
      open(s, o, second, s[o + 2])
    elseif second > last then
      open(s, o, second, nextPool(s, o, second - last))
    end
  end

  local function remaining(s, o)
    return max(0, min(wholeTokens(s[o + 2]) - s[o + 4], floor(s[o + 3] + EPSILON)))
  end

  local function retryAfter(s, o, cost, now)
    local second, pool = s[o + 1], s[o + 2]
    if cost > wholeTokens(maxRate) then return NEVER end
    local steps = 1
    if mode == SCHEDULED then steps = ceil((cost - pool) / slope - EPSILON) end
    local gap = 1
    if slope > 0 then gap = max(1, steps) end
    local expected = pool + slope
    if mode == SCHEDULED then expected = pool + slope * gap end
    if gap > resumeFor then expected = minRate end
    if wholeTokens(clamp(expected)) >= cost then return ceil((second + gap) * 1000 - now) end
    return ceil((second + 1) * 1000 - now)
  end

  return {
    width = 6,
    init = function(s, o, now)
      s[o + 1], s[o + 2], s[o + 3], s[o + 4], s[o + 5], s[o + 6] = 0 / 0, minRate, 0, 0, 1, -1
    end,
    check = function(s, o, cost, now)
      if cost == 0 then
        local copy = { s[o + 1], s[o + 2], s[o + 3], s[o + 4], 1, -1 }
        advance(copy, 0, now)
        return ALLOW, remaining(copy, 0)
      end
      advance(s, o, now)
      if cost > remaining(s, o) + EPSILON then return DENY, retryAfter(s, o, cost, now) end
      s[o + 4] = s[o + 4] + cost
      s[o + 3] = max(0, s[o + 3] - cost)
      return ALLOW, remaining(s, o)
    end,
--[[not in check-only scripts
    available = function(s, o, now)
      advance(s, o, now)
      return remaining(s, o)
    end,
    settle = function(s, o, ignored, cost, used, dueAt, now)
      local unused = cost - used
      if ignored then unused = cost end
      local isLate = floor(now / 1000) > s[o + 1]
      if isLate or floor(dueAt / 1000) ~= s[o + 1] then return end
      local back = min(unused, s[o + 4])
      local left = s[o + 3] + back
      s[o + 4] = s[o + 4] - back
      s[o + 3] = max(0, min(wholeTokens(s[o + 2]), left))
    end,
    hits = function(s, o, n, now)
      advance(s, o, now)
      s[o + 3] = max(0, s[o + 3] - n)
    end,
--]]
    freshAt = function(s, o)
      local second = s[o + 1]
      if second ~= second then return huge end
      if maxRate == minRate then return (second + 1) * 1000 end
      local forgottenAt = (second + 1 + resumeFor) * 1000
      if mode ~= 3 or slopeDown == 0 then return forgottenAt end
      local grown = clamp(s[o + 2] + slope) - minRate
      return min(forgottenAt, (second + 1 + coolDown + ceil(grown / slopeDown)) * 1000)
    end,
  }
end
`;

/** Composite (`all`): every rule must allow; if one refuses, the others are restored. */
const COMPOSITE_LUA = `
local function all(parts)
  local width = 0
  for _, part in ipairs(parts) do
    part.offset = width
    width = width + part.width
  end

  local function checkAll(s, o, cost, now, took)
    local remaining, waitMs, retry, locked, never, refusing = huge, 0, -1, nil, nil, nil
    for n, part in ipairs(parts) do
      local verdict, value, isLocked = part.check(s, o + part.offset, cost, now)
      took[n] = verdict ~= DENY
      if verdict == ALLOW then
        remaining = min(remaining, value)
      elseif verdict == WAIT then
        waitMs = max(waitMs, value)
      elseif value == NEVER then
        never = never or n
      elseif value > retry then
        retry, locked, refusing = value, isLocked, n
      end
    end
    if never then return DENY, NEVER, nil, never end
    if refusing then return DENY, retry, locked, refusing end
    if waitMs == 0 then return ALLOW, remaining end
    for _, part in ipairs(parts) do
      if part.deferTo then part.deferTo(s, o + part.offset, now + waitMs, cost) end
    end
    return WAIT, waitMs
  end

  local recordRefusal
  for _, part in ipairs(parts) do
    if part.recordRefusal then
      recordRefusal = function(s, o, now, took)
        local longest, locking = 0, nil
        for n, each in ipairs(parts) do
          local ms = 0
          if each.recordRefusal and (not took or took[n]) then ms = each.recordRefusal(s, o + each.offset, now) end
          if ms > longest then longest, locking = ms, n end
        end
        return longest, locking
      end
    end
  end

  return {
    width = width,
    countsRefusals = recordRefusal ~= nil,
    recordRefusal = recordRefusal,
    report = function(s, o, ...)
      for _, part in ipairs(parts) do
        if part.report then part.report(s, o + part.offset, ...) end
      end
    end,
    init = function(s, o, now)
      for _, part in ipairs(parts) do part.init(s, o + part.offset, now) end
    end,
    check = function(s, o, cost, now)
      if cost > 0 then
        for _, part in ipairs(parts) do part.available(s, o + part.offset, now) end
      end
      local saved, took = {}, {}
      for n = 1, width do saved[n] = s[o + n] end
      local verdict, value, locked, refusing = checkAll(s, o, cost, now, took)
      if verdict == DENY then
        for n, part in ipairs(parts) do
          if took[n] then
            for i = part.offset + 1, part.offset + part.width do s[o + i] = saved[i] end
          end
        end
        if recordRefusal and cost > 0 and value ~= NEVER then
          local ms, locking = recordRefusal(s, o, now, took)
          if ms > value then value, locked, refusing = ms, true, locking end
        end
      end
      return verdict, value, locked, refusing
    end,
    available = function(s, o, now)
      local least = huge
      for _, part in ipairs(parts) do least = min(least, part.available(s, o + part.offset, now)) end
      return least
    end,
    settle = function(s, o, ...)
      for _, part in ipairs(parts) do part.settle(s, o + part.offset, ...) end
    end,
    hits = function(s, o, ...)
      for _, part in ipairs(parts) do part.hits(s, o + part.offset, ...) end
    end,
    freshAt = function(s, o)
      local last, lastKnown = -huge, -huge
      for _, part in ipairs(parts) do
        local at = part.freshAt(s, o + part.offset)
        last = max(last, at)
        if at < huge then lastKnown = max(lastKnown, at) end
      end
      return last, lastKnown
    end,
  }
end
`;

const RULES_LUA: Readonly<Record<string, string>> = {
  bucket: BUCKET_LUA,
  spacing: SPACING_LUA,
  ramp: RAMP_LUA,
  window: WINDOW_LUA,
  quota: QUOTA_LUA,
  lockout: LOCKOUT_LUA,
};

/** A number as a Lua literal, exact to the last digit. */
export const luaNumber = (value: number): string => {
  if (value === Infinity) return 'huge';
  return value < 0 ? `(${value})` : String(value);
};

/** Sections of the rules above that a check does not need. A bucket has its own script: `lua-bucket.ts`. */
const NON_CHECK_SECTIONS = /--\[\[not in check-only scripts\n([\s\S]*?)--\]\]\n/g;

/** True if a check needs only a part of the rule. `all` also uses `available` and `deferTo`. */
export const hasShortForm = (specs: readonly RuleSpec[]): boolean => specs.length === 1;

/** Lua that defines `rule` from these specs. It runs with every call, so unneeded parts are left out. */
export function ruleLua(specs: readonly RuleSpec[], isCheckOnly: boolean): string {
  const kinds = [...new Set(specs.map(({ kind }) => kind))];
  const rules = specs.map(
    ({ kind, params, zone }) =>
      `${kind}(${[...params.map(luaNumber), ...zoneLua(zone)].join(', ')})`,
  );
  const rule = rules.length === 1 ? rules[0] : `all({ ${rules.join(', ')} })`;
  return [
    COMMON_LUA,
    ...kinds.map((kind) => RULES_LUA[kind].replace(NON_CHECK_SECTIONS, isCheckOnly ? '' : '$1')),
    rules.length > 1 ? COMPOSITE_LUA : '',
    `local rule = ${rule}`,
  ].join('\n');
}

/** Lua that defines `RULES`: how to create a rule of each kind from its parameters, and `all` to combine rules. */
export const allRulesLua = (): string =>
  [
    COMMON_LUA,
    ...Object.values(RULES_LUA).map((lua) => lua.replace(NON_CHECK_SECTIONS, '$1')),
    COMPOSITE_LUA,
    `local RULES = { ${Object.keys(RULES_LUA)
      .map((kind) => `${kind} = ${kind}`)
      .join(', ')} }`,
  ].join('\n');
