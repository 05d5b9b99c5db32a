-- GCRA with one number in a string, one call for each decision.
-- ARGV: burst, microseconds per unit, the caller's time in microseconds, cost.
local interval, now = tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then
  tat = now
end
local after = tat + interval * tonumber(ARGV[4])
local room = now + interval * tonumber(ARGV[1]) - after
if room < 0 then
  return { 0, 0 }
end
redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000))
return { 1, math.floor(room / interval) }
