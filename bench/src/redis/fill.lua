-- Makes counters of the other scripts, or what theirs are compared with in memory, many in one call.
-- ARGV: the kind, the first and the last number, the time in microseconds.
local kind, now = ARGV[1], tonumber(ARGV[4])
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  if kind == 'hash' then
    local key = string.format('rl:user:%016d', number)
    redis.call('HMSET', key, 'tokens', 90.123456789012, 'ts', string.format('%.6f', now / 1000000))
    redis.call('EXPIRE', key, 7200)
  elseif kind == 'gcra' then
    redis.call('SET', string.format('tat:user:%016d', number), string.format('%.0f', now + 360000000), 'PX', 3600000)
  elseif kind == 'integer' then
    redis.call('SET', string.format('rl:user:%022d', number), string.format('%.0f', now), 'PX', 3600000)
  else
    local key = string.format('rl:user:%022d', number)
    for request = 1, 1000 do
      redis.call('ZADD', key, now + request, string.format('%.0f', now + request))
    end
    redis.call('PEXPIRE', key, 3600000)
  end
end
return 0
