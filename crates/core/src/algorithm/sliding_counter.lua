-- Twin of sliding_counter.rs: two windows, the older weighted by how much of it the rolling window still covers.
--
-- A state is a string: the end of the current window, the time of the last write, the counts of both windows; wide if
-- four bytes do not hold one of those.
local SLIDING_COUNTER, WIDE_COUNTER = '<I7I7I4I4', '<I7I7I7I7'

local function counters_read(state)
  return struct_unpack(#state == 22 and SLIDING_COUNTER or WIDE_COUNTER, state)
end

local function counters_write(ends, at, previous, current)
  local is_narrow = previous <= NARROW and current <= NARROW
  return struct_pack(is_narrow and SLIDING_COUNTER or WIDE_COUNTER, ends, at, previous, current)
end

-- The counters at `now`: that time, the end of the current window, both counts, and the state to write if the clock was
-- set back.
local function counters_reconcile(limit, state, now, slack)
  local period = limit.period
  if not state then
    return now, next_boundary(now + 1, period), 0, 0, nil
  end
  local ends, at, previous, current = counters_read(state)
  local back, repair
  now, back = reconcile(at, now, slack)
  if back > 0 then
    ends = ends > back and ends - back or 0
    repair = counters_write(ends, now, previous, current)
  end
  if now >= ends then
    if now < ends + period then
      ends, previous, current = ends + period, current, 0
    else
      previous, current = 0, 0
    end
  end
  if previous + current > 0 then
    return now, ends, previous, current, repair
  end
  return now, next_boundary(now + 1, period), 0, 0, repair
end

-- The longest covered part of a window with `used` units whose share is within `budget`.
local function coverage_max(limit, used, budget)
  if used > budget then
    return (muldiv(budget, limit.period, used))
  end
  return limit.period
end

local function counters_fresh_at(limit, now, ends, previous, current)
  if current > 0 then
    return ends + limit.period
  end
  return previous > 0 and ends or now
end

local function sliding_counter()
  return {
    limit = function(units, period)
      return { units = units, period = period, bytes = 22 }
    end,
    is_state = function(_, state)
      if #state ~= 22 and #state ~= 28 then
        return false
      end
      local ends, at, previous, current = counters_read(state)
      return at < ends
        and ends <= LAST
        and at <= LAST_NOW
        and previous <= UNITS
        and current <= UNITS
    end,
    decide = function(limit, state, cost, now, slack)
      local ends, previous, current, repair
      now, ends, previous, current, repair = counters_reconcile(limit, state, now, slack)
      local units, period = limit.units, limit.period
      -- The estimated units in the rolling window, rounded up.
      local covered = ends - now
      local used, rest = muldiv(previous, covered < period and covered or period, period)
      used = used + current + (rest > 0 and 1 or 0)
      local free = units > used and units - used or 0
      local taken = cost < free and cost or free
      local next
      if taken > 0 then
        next = counters_write(ends, now, previous, current + taken)
      end
      local allowed = cost <= free
      local wait = 0
      local held = current
      if allowed then
        free = free - taken
        held = current + taken
      elseif cost > units then
        wait = NEVER
      else
        local budget = units - cost
        local allowed_at
        if current <= budget then
          allowed_at = ends - coverage_max(limit, previous, budget - current)
        else
          allowed_at = ends + period - coverage_max(limit, current, budget)
        end
        wait = allowed_at > now and allowed_at - now or 0
      end
      local fresh_at = counters_fresh_at(limit, now, ends, previous, held)
      -- The mark has the previous window's units where other marks have a fraction.
      return allowed, free, fresh_at - now, wait, next, repair, fresh_at, ends, previous, now
    end,
    refund = function(limit, state, cost, now, slack)
      local reconciled, ends, previous, current = counters_reconcile(limit, state, now, slack)
      local left = current > cost and current - cost or 0
      if left == current then
        return nil
      end
      return counters_write(ends, reconciled, previous, left)
    end,
    undo = function(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      local _, written_at = counters_read(state)
      if is_other_clock(written_at, taken_at, now, slack) then
        return nil
      end
      local reconciled, ends, previous, current = counters_reconcile(limit, state, now, slack)
      if ends == mark_at then
        current = current > cost and current - cost or 0
      elseif ends == mark_at + limit.period then
        previous = previous > cost and previous - cost or 0
      else
        return nil
      end
      return counters_write(ends, reconciled, previous, current)
    end,
    fresh_at = function(limit, state)
      local ends, at, previous, current = counters_read(state)
      return counters_fresh_at(limit, at, ends, previous, current)
    end,
  }
end
