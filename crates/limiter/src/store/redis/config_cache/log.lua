local entries
if ARGV[1] == 'last' then
  entries = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
else
  entries = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])
end
local reply, bytes = {}, 0
for _, entry in ipairs(entries) do
  local field, value = entry[2][1], entry[2][2]
  if field ~= 'c' or #entry[2] ~= 2 or #value > tonumber(ARGV[3]) then
    reply[#reply + 1] = { entry[1] }
    break
  end
  bytes = bytes + #value
  if #reply > 0 and bytes > tonumber(ARGV[4]) then break end
  reply[#reply + 1] = { entry[1], value }
end
return reply
