-- Twin of decision.rs, as far as a script needs it. A step is told as
--   allowed, remaining, reset_after, wait, next, repair, fresh_at, mark_at, mark_frac, taken_at
-- where `wait` is the delay of what passes, and of what does not when it would. Waits that are no time:
local UNKNOWN, NEVER = -1, -2
