export const CHECK_BEGIN_LUA = `
local now = tonumber(ARGV[1])
local isTimeGiven = now ~= nil
if not isTimeGiven then
  local time = call('TIME')
  now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
end
local isLate = not isTimeGiven and ARGV[1] ~= '' and now > tonumber(string.sub(ARGV[1], 4))
local replies = { (isLate and 'late ' or '') .. string.format('%.17g', now) }
local isUniform = #ARGV == 2
local cost = isUniform and tonumber(string.sub(ARGV[2], 2))
`;
