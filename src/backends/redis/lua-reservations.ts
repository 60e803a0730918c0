/**
 * Reservations: charges of a key that expire unless they are confirmed.
 *
 * A check of several limits in different slots or servers takes two steps: it reserves in each of them, then it
 * confirms. If a client dies between the steps, its units are released when the reservation expires, on Redis's clock.
 * Reservations follow the numbers of their key, so a key without one has no extra cost:
 *
 *     │ numbers of the rule │ id · expires at · cost · charged at │ … │ R │
 *
 *     command              reply
 *     v<id> <cost>         check without waiting, and reserve     as of `n`
 *     v<id> <cost> w       as v, for a call that waits     as of `w`
 *     k<id>                confirm: the charge stays              1, or 0 if it had expired
 *     u<id>                undo, before or after the confirmation 0
 *
 * All three may be sent twice. The first command that reads the key settles an expired reservation as ignored, at the
 * instant of its expiry. Redis remembers a confirmed reservation for as long as it may be undone.
 */

import type { Millis } from '../../core/clock.ts';

/** Lifetime of a reservation: the longest time that units stay charged for a dead client. */
export const RESERVATION_TTL_MS: Millis = 5000;

/** The most reservations of one key; further calls are refused until one is confirmed or expires. */
const MAX_RESERVATIONS = 256;

/** The error of a check-only script for a key with reservations: the full script must decide. */
export const RESERVED_ERROR = 'SLUICE_RESERVED';

/** For check-only scripts, after `packed` was read. Numbers have 8 bytes, so one more byte marks reservations. */
export const REFUSE_RESERVED_LUA = `
  if packed and #packed % 8 == 1 and string.sub(packed, -1) == 'R' then error('${RESERVED_ERROR}', 0) end`;

/** Functions that read and write reservations: `s` is the state of the key by `rule`, in `bytes` bytes. */
export const RESERVATIONS_LUA = `
local function isReserved(packed, bytes)
  return packed and #packed > bytes and (#packed - bytes) % 32 == 1 and string.sub(packed, -1) == 'R'
end

-- The reservations that last; others are given back.
local function readReservations(packed, bytes, rule, s)
  local list = {}
  for at = bytes + 1, #packed - 1, 32 do
    local id, expiresAt, cost, chargedAt = struct.unpack('<dddd', packed, at)
    if expiresAt > now then list[#list + 1] = { id, expiresAt, cost, chargedAt }
    else rule.settle(s, 0, true, cost, cost, chargedAt, expiresAt) end
  end
  return list
end

-- Their bytes, and for how long they last.
local function packReservations(list)
  if not list or #list == 0 then return '', 0 end
  local packed, lastAt = {}, now
  for n, one in ipairs(list) do
    packed[n] = struct.pack('<dddd', unpack(one))
    lastAt = max(lastAt, one[2])
  end
  return table.concat(packed) .. 'R', ceil(lastAt - now) + 1
end
`;

/** Reservation commands of a limit's full script. */
export const RESERVATION_COMMANDS_LUA = `
local function takeReservation(key, id)
  for n, one in ipairs(reservations[key] or {}) do
    if one[1] == id then return table.remove(reservations[key], n) end
  end
end

OPS.v = function(s, rest, key)
  local id, cost, waits = match(rest, '(%S+) (%S+) ?(%S*)')
  id, cost = tonumber(id), tonumber(cost)
  local list = reservations[key] or {}
  for _, one in ipairs(list) do
    if one[1] == id then return encodeDecision(ALLOW, rule.available(s, 0, now)) end
  end
  if #list >= ${MAX_RESERVATIONS} then return encodeDecision(DENY, max(1, ceil(list[1][2] - now))) end
  local verdict, value, isLocked, refusing = checkNow(s, cost, waits ~= '' and rule.countsRefusals)
  if verdict == ALLOW and not isLate then
    list[#list + 1] = { id, now + ${RESERVATION_TTL_MS}, cost, now }
    reservations[key] = list
  end
  return encodeDecision(verdict, value, isLocked, refusing)
end

OPS.k = function(s, id, key)
  local confirmedKey = key .. ':confirmed:' .. id
  local one = not isLate and takeReservation(key, tonumber(id))
  if not one then return call('GET', confirmedKey) and 1 or 0 end
  call('SET', confirmedKey, exact(one[3]) .. ' ' .. exact(one[4]), 'PX', ${RESERVATION_TTL_MS})
  return 1
end

OPS.u = function(s, id, key)
  local confirmedKey = key .. ':confirmed:' .. id
  local one = takeReservation(key, tonumber(id))
  local cost, chargedAt
  if one then cost, chargedAt = one[3], one[4]
  else cost, chargedAt = match(call('GET', confirmedKey) or '', '(%S+) (%S+)') end
  if not cost then return 0 end
  call('DEL', confirmedKey)
  rule.settle(s, 0, true, tonumber(cost), tonumber(cost), tonumber(chargedAt), now)
  return 0
end
`;
