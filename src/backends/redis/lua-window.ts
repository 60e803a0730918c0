/** The state is the last step (`o + 1`, NaN before the first call) and a ring of counts. */

export const WINDOW_LUA = `
local function window(limit, steps, stepMs, lendMs)
  local ring = steps + 1

  local function stepAt(now)
    local step = floor(now / stepMs)
    if (step + 1) * stepMs <= now then return step + 1 end
    return step
  end

  local function indexOf(step) return 2 + step % ring end

  local function advance(s, o, now)
    local step, last = stepAt(now), s[o + 1]
    if step <= last then return last end
    local from = step
    if last == last then
      from = max(last + 1, step - steps)
      local newest = o + indexOf(last)
      if s[newest] < 0 then s[newest] = 0 end -- borrowed and not used
    end
    for cleared = from, step do s[o + indexOf(cleared)] = 0 end
    s[o + 1] = step
    return step
  end

  local function countOf(s, o)
    local sum = 0
    for n = o + 2, o + 1 + ring do sum = sum + s[n] end
    return sum
  end

  local function remainingAt(s, o, now)
    local copy = { unpack(s, o + 1, o + 1 + ring) }
    advance(copy, 0, now)
    return limit - countOf(copy, 0)
  end

  local function retryAfter(s, o, cost, now)
    local newest = s[o + 1]
    local missing = cost - (limit - countOf(s, o))
    for step = newest - steps, newest do
      missing = missing - s[o + indexOf(step)]
      if missing <= 0 then return max(1, ceil((step + ring) * stepMs - now)) end
    end
    return NEVER
  end

  return {
    width = 1 + ring,
    init = function(s, o, now)
      s[o + 1] = 0 / 0
      for n = o + 2, o + 1 + ring do s[n] = 0 end
    end,
    check = function(s, o, cost, now)
      if cost == 0 then return ALLOW, max(0, remainingAt(s, o, now)) end
      if cost > limit then return DENY, NEVER end
      local index = o + indexOf(advance(s, o, now))
      local remaining = limit - countOf(s, o) - cost
      if remaining < 0 then return DENY, retryAfter(s, o, cost, now) end
      s[index] = s[index] + cost
      return ALLOW, remaining
    end,
    deferTo = function(s, o, dueAt, cost)
      local checked, due = s[o + 1], stepAt(dueAt)
      if due <= checked then return end
      s[o + indexOf(checked)] = s[o + indexOf(checked)] - cost
      local carried = 0
      for step = checked - steps, min(checked, due - ring) do carried = carried + s[o + indexOf(step)] end
      advance(s, o, dueAt)
      local oldest, newest = o + indexOf(due - steps), o + indexOf(due)
      s[oldest] = s[oldest] + carried
      s[newest] = s[newest] + cost
    end,
    available = function(s, o, now) return max(0, floor(remainingAt(s, o, now))) end,
    settle = function(s, o, ignored, cost, used, dueAt, now, isTimeUnknown)
      local unused = cost - used
      if ignored then unused = cost end
      local newest = advance(s, o, now)
      if unused > 0 and isTimeUnknown then -- from the oldest steps
        for step = newest - steps, newest do
          if unused <= 0 then return end
          local index = o + indexOf(step)
          local taken = min(unused, max(0, s[index]))
          s[index] = s[index] - taken
          unused = unused - taken
        end
        return
      end
      local step = newest
      if unused > 0 then step = stepAt(dueAt) end
      if step < newest - steps or step > newest then return end
      local index = o + indexOf(step)
      s[index] = s[index] - min(unused, max(0, s[index]))
    end,
    lendMs = lendMs,
    credit = function(s, o, units, upTo, now)
      local step = advance(s, o, now)
      local added = min(units, upTo - (limit - countOf(s, o)))
      local index = o + indexOf(step)
      if added > 0 and step == stepAt(now) then s[index] = s[index] - added end
    end,
    hits = function(s, o, n, now)
      local index = o + indexOf(advance(s, o, now))
      s[index] = s[index] + n
    end,
    freshAt = function(s, o)
      local newest = s[o + 1]
      for step = newest, newest - steps, -1 do
        if s[o + indexOf(step)] > 0 then return (step + ring) * stepMs end
      end
      return -huge
    end,
  }
end
`;
