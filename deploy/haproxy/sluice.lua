-- Asks a Sluice daemon about a request: an action for `http-request`. docs/how-to/gateways.md has the configuration.
--
--     lua-load-per-thread sluice.lua
--     http-request lua.sluice ADDRESS TIMEOUT_MS
--
--     before    txn.sluice_key                       the key, any bytes
--               txn.sluice_limit, txn.sluice_cost    optional: the parameters `limit` and `cost` of /check
--     after     txn.sluice                           allow, deny, or unavailable: no reply in time
--               txn.sluice_status                    the status of the reply
--               txn.sluice_retry_after, txn.sluice_ratelimit, txn.sluice_policy    headers of the reply
--
-- Every byte that could end a parameter is escaped: a client that chooses its key cannot add a parameter.

-- A reply has few headers: more of them come from another server.
local MAX_HEADERS = 100

local VARIABLES = {
  ["retry-after"] = "txn.sluice_retry_after",
  ["ratelimit"] = "txn.sluice_ratelimit",
  ["ratelimit-policy"] = "txn.sluice_policy",
}

local function escaped(key)
  return (key:gsub("[^%w%-._~:/]", function(char) return string.format("%%%02X", char:byte()) end))
end

-- The status and the headers of a reply; nil if it is none, or late.
local function read_reply(socket)
  local line = socket:receive("*l")
  local status = line and tonumber(line:match("^HTTP/1%.1 (%d%d%d)"))
  if not status then return nil end
  local headers = {}
  for _ = 1, MAX_HEADERS do
    line = socket:receive("*l")
    if not line then return nil end
    local name, value = line:match("^([^:]+): *(.-)\r?$")
    if not name then return status, headers end
    headers[name:lower()] = value
  end
end

-- The parameters of the check; nil without a key.
local function query_of(txn)
  local key = txn:get_var("txn.sluice_key")
  if key == nil or key == "" then return nil end
  local query = "key=" .. escaped(key)
  for _, name in ipairs({ "limit", "cost" }) do
    local value = txn:get_var("txn.sluice_" .. name)
    if value ~= nil then query = query .. "&" .. name .. "=" .. escaped(tostring(value)) end
  end
  return query
end

local function check(address, timeout_ms, query)
  local socket = core.tcp()
  socket:settimeout(timeout_ms / 1000)
  local status, headers
  if socket:connect(address) then
    socket:send("GET /check?" .. query .. " HTTP/1.1\r\nHost: localhost\r\n\r\n")
    status, headers = read_reply(socket)
  end
  socket:close()
  return status, headers
end

core.register_action("sluice", { "http-req" }, function(txn, address, timeout_ms)
  local query = query_of(txn)
  local status, headers = 400, {}
  if query then status, headers = check(address, timeout_ms, query) end
  if not status then return txn:set_var("txn.sluice", "unavailable") end
  for name, variable in pairs(VARIABLES) do
    if headers[name] then txn:set_var(variable, headers[name]) end
  end
  txn:set_var("txn.sluice_status", status)
  txn:set_var("txn.sluice", status < 300 and "allow" or "deny")
end, 2)
