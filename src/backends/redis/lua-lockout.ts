export const LOCKOUT_LUA = `
local function lockout(after, within, forget, isReset, isOnRefusal, ...)
  local locks = { ... }
  local UNBOUNDED = 9007199254740991

  local function lockEnd(s, o) return s[o + 3] + s[o + 4] end

  local function lockedMs(s, o, now)
    if s[o + 5] > 0 then return max(0, wholeMsUntil(lockEnd(s, o), now)) end
    return 0
  end

  local function countedUntil(s, o) return addRoundingUp(s[o + 3], within) end

  local function isOver(s, o, now)
    return now >= countedUntil(s, o) or (s[o + 5] > 0 and s[o + 4] > 0 and now >= lockEnd(s, o))
  end

  local function countAt(s, o, now)
    if isOver(s, o, now) then return 0 end
    return s[o + 1]
  end

  local function forgottenAt(s, o) return addRoundingUp(lockEnd(s, o), forget) end

  local function advance(s, o, now)
    if s[o + 1] > 0 and not isOver(s, o, now) then return end
    local ended = 0
    if s[o + 5] > 0 then ended = lockEnd(s, o) - now end
    s[o + 1], s[o + 2], s[o + 3], s[o + 4] = 0, 0, now, ended
  end

  local function add(s, o, count, now)
    s[o + 1] = s[o + 1] + count
    if s[o + 1] < after or lockedMs(s, o, now) > 0 then return end
    local level = 0
    if now < forgottenAt(s, o) then level = s[o + 5] end
    s[o + 4] = addRoundingUp(now, locks[min(level + 1, #locks)]) - s[o + 3]
    s[o + 5] = min(level + 1, #locks)
  end

  local function unlock(s, o, now)
    if s[o + 1] >= after or lockedMs(s, o, now) == 0 then return end
    s[o + 4] = 0
    s[o + 5] = s[o + 5] - 1
  end

  local function giveBack(s, o, count, now)
    advance(s, o, now)
    local returned = min(count, s[o + 2])
    s[o + 2] = s[o + 2] - returned
    s[o + 1] = s[o + 1] - returned
    if returned > 0 then unlock(s, o, now) end
  end

  local function reset(s, o, count, now)
    advance(s, o, now)
    local wasPending = s[o + 2] > 0
    s[o + 2] = max(0, s[o + 2] - count)
    s[o + 1] = s[o + 2]
    if wasPending then unlock(s, o, now) else s[o + 4] = min(s[o + 4], now - s[o + 3]) end
  end

  local function fail(s, o, count, now)
    advance(s, o, now)
    local known = min(count, s[o + 2])
    s[o + 2] = s[o + 2] - known
    add(s, o, count - known, now)
  end

  local function available(s, o, now)
    if lockedMs(s, o, now) > 0 then return 0 end
    if isOnRefusal == 1 then return UNBOUNDED end
    return max(0, floor(after - countAt(s, o, now)))
  end

  local function recordRefusal(s, o, now)
    advance(s, o, now)
    add(s, o, 1, now)
    return lockedMs(s, o, now)
  end

  return {
    width = 5,
    init = function(s, o, now) s[o + 1], s[o + 2], s[o + 3], s[o + 4], s[o + 5] = 0, 0, now, 0, 0 end,
    check = function(s, o, cost, now)
      if cost == 0 then return ALLOW, available(s, o, now) end
      if cost > after and isOnRefusal == 0 then return DENY, NEVER end
      local ms = lockedMs(s, o, now)
      if ms > 0 then return DENY, ms, true end
      if isOnRefusal == 1 then return ALLOW, UNBOUNDED end
      if countAt(s, o, now) + cost > after then
        return DENY, max(1, wholeMsUntil(countedUntil(s, o), now))
      end
      advance(s, o, now)
      s[o + 2] = s[o + 2] + cost
      add(s, o, cost, now)
      return ALLOW, floor(after - s[o + 1])
    end,
    recordRefusal = isOnRefusal == 1 and recordRefusal or nil,
    available = available,
    settle = function(s, o, ignored, cost, used, dueAt, now)
      local unused = cost - used
      if ignored then unused = cost end
      if unused > 0 and isOnRefusal == 0 then giveBack(s, o, unused, now) end
    end,
    hits = function(s, o, n, now)
      if isOnRefusal == 1 then return end
      advance(s, o, now)
      add(s, o, n, now)
    end,
    report = function(s, o, what, count, now)
      if isOnRefusal == 1 then
        if what == 'refusal' then recordRefusal(s, o, now) end
      elseif what == 'failure' then
        fail(s, o, count, now)
      elseif what == 'success' then
        if isReset == 1 then reset(s, o, count, now) else giveBack(s, o, count, now) end
      end
    end,
    freshAt = function(s, o)
      local last = -huge
      if s[o + 1] > 0 then last = countedUntil(s, o) end
      if s[o + 5] > 0 then last = max(last, forgottenAt(s, o)) end
      return last
    end,
  }
end
`;
