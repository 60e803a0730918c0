-- Requests of wrk: batches of DEPTH pipelined requests with keys in rotation.
--
--     wrk … --script wrk.lua URL -- DEPTH check|root

local BATCHES, KEYS = 32, 1000
local batches, at = {}, 0

function init(args)
  local depth, isCheck = tonumber(args[1]), args[2] == 'check'
  for b = 0, BATCHES - 1 do
    local requests = {}
    for n = 1, depth do
      local key = ((b * depth + n - 1) * 7919) % KEYS
      requests[n] = wrk.format('GET', isCheck and '/check?limit=default&key=user:' .. key or '/')
    end
    batches[b + 1] = table.concat(requests)
  end
end

function request()
  at = at % BATCHES + 1
  return batches[at]
end
