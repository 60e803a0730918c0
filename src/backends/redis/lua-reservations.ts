/**
 * Reservations: charges of a key that expire by themselves unless they are confirmed.
 *
 * A check of several limits that live in different slots or servers takes two steps: it reserves in each of them, then it
 * confirms. A client that dies between the steps confirms nothing, and its units come back when the reservation expires,
 * on Redis's clock. Reservations stand behind the numbers of their key, so a key without one costs nothing more:
 *
 *     │ numbers of the rule │ id · expires at · cost · charged at │ … │ R │
 *
 *     command              reply
 *     v<id> <cost>         check without waiting, and reserve     as of `n`
 *     v<id> <cost> w       the same of a call that waits on       as of `w`
 *     k<id>                confirm: the charge stays              1, or 0 if it had expired
 *     u<id>                undo, before or after the confirmation 0
 *
 * All three may be sent twice. An expired reservation is returned as a call that is settled as ignored, at the instant of
 * its expiry, by the first command that reads the key. Redis remembers a confirmed one for as long as it may be undone.
 */

import type { Millis } from '../../core/clock.ts';

/** How long a reservation lasts: the bound on what a client that died leaves charged. */
export const RESERVATION_TTL_MS: Millis = 5000;

/** Reservations of one key; beyond that a call is refused until one is confirmed or expires. */
const MAX_RESERVATIONS = 256;

/** What a script of checks alone replies for a key with reservations: the full script must decide. */
export const RESERVED_ERROR = 'SLUICE_RESERVED';

/** In a script of checks alone, after `packed` was read. Numbers have 8 bytes, so one more byte tells. */
export const REFUSE_RESERVED_LUA = `
  if packed and #packed % 8 == 1 and string.sub(packed, -1) == 'R' then error('${RESERVED_ERROR}', 0) end`;

/** Reads and writes them: `s` is the state of the key by `rule`, in `bytes` bytes. */
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

/** Of the full script of a limit. */
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
