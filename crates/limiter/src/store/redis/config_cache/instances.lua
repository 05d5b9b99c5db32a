local old = redis.call('ZRANGE', KEYS[1], '-inf', '(' .. ARGV[1], 'BYSCORE', 'LIMIT', 0, 256)
if #old > 0 then redis.call('ZREM', KEYS[1], unpack(old)) end
local reply = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  if #member <= tonumber(ARGV[3]) then reply[#reply + 1] = member end
end
return reply
