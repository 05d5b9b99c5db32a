-- Twin of decision.rs, as far as a script needs it. A step is returned as
--   allowed, remaining, reset_after, wait, next, repair, fresh_at, mark_at, mark_frac, taken_at
-- where `wait` is the delay of a request that passes, and the time until a denied one would. Waits that are no time:
local UNKNOWN, NEVER = -1, -2
