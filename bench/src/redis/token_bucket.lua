-- What articles on rate limiting put forward: a token bucket in a hash, one call for each decision.
-- ARGV: capacity, tokens per second, the caller's time in seconds, cost.
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local now, cost = tonumber(ARGV[3]), tonumber(ARGV[4])
local held = redis.call('HMGET', KEYS[1], 'tokens', 'ts')
local tokens, ts = tonumber(held[1]), tonumber(held[2])
if not tokens then
  tokens, ts = capacity, now
end
tokens = math.min(capacity, tokens + math.max(0, now - ts) * rate)
local allowed = 0
if tokens >= cost then
  tokens, allowed = tokens - cost, 1
end
redis.call('HMSET', KEYS[1], 'tokens', tokens, 'ts', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / rate) * 2)
return { allowed, math.floor(tokens) }
