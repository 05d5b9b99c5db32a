-- A read tells no empty value from an absent one, so that both count as absent here.
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('GET', KEYS[1]) == '' then
  if ARGV[1] == '1' then return 0 end
elseif ARGV[1] == '0' or redis.call('GET', KEYS[1]) ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return 1
