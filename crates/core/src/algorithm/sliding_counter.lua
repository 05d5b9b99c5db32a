-- Twin of sliding_counter.rs: two windows, the older weighted by how much of it the rolling window still covers.
--
-- A state is a string: the end of the current window, the time of the last write, the counts of both windows.
local SLIDING_COUNTER = '<I7I7I4I4'

-- The counters at `now`: that time, the end of the current window, both counts, and what to write back after a step.
local function counters_heed(limit, state, now, slack)
  local period = limit.period
  if not state then
    return now, next_seam(now + 1, period), 0, 0, nil
  end
  local ends, at, previous, current = struct_unpack(SLIDING_COUNTER, state)
  local back, repair
  now, back = heed(at, now, slack)
  if back > 0 then
    ends = ends > back and ends - back or 0
    repair = struct_pack(SLIDING_COUNTER, ends, now, previous, current)
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
  return now, next_seam(now + 1, period), 0, 0, repair
end

-- How much of a window with `used` units may still be covered for its share to be within `room`.
local function covered_at_most(limit, used, room)
  if used > room then
    return (muldiv(room, limit.period, used))
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
      return { units = units, period = period }
    end,
    is_state = function(_, state)
      if #state ~= 22 then
        return false
      end
      local ends, at, previous, current = struct_unpack(SLIDING_COUNTER, state)
      return at < ends
        and ends <= LAST
        and at <= LAST_NOW
        and previous <= 1000000000
        and current <= 1000000000
    end,
    decide = function(limit, state, cost, now, slack)
      local ends, previous, current, repair
      now, ends, previous, current, repair = counters_heed(limit, state, now, slack)
      local units, period = limit.units, limit.period
      -- What the rolling window holds, a begun unit counted whole.
      local covered = ends - now
      local used, rest = muldiv(previous, covered < period and covered or period, period)
      used = used + current + (rest > 0 and 1 or 0)
      local free = units > used and units - used or 0
      local taken = cost < free and cost or free
      local next
      if taken > 0 then
        next = struct_pack(SLIDING_COUNTER, ends, now, previous, current + taken)
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
        local room = units - cost
        local passes_at
        if current <= room then
          passes_at = ends - covered_at_most(limit, previous, room - current)
        else
          passes_at = ends + period - covered_at_most(limit, current, room)
        end
        wait = passes_at > now and passes_at - now or 0
      end
      local fresh_at = counters_fresh_at(limit, now, ends, previous, held)
      return allowed, free, fresh_at - now, wait, next, repair, fresh_at, ends, 0, now
    end,
    refund = function(limit, state, cost, now, slack)
      local heard, ends, previous, current = counters_heed(limit, state, now, slack)
      local left = current > cost and current - cost or 0
      if left == current then
        return nil
      end
      return struct_pack(SLIDING_COUNTER, ends, heard, previous, left)
    end,
    undo = function(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      local _, written = struct_unpack(SLIDING_COUNTER, state)
      if (written > taken_at and written or taken_at) - now > slack then
        return nil
      end
      local heard, ends, previous, current = counters_heed(limit, state, now, slack)
      if ends == mark_at then
        current = current > cost and current - cost or 0
      elseif ends == mark_at + limit.period then
        previous = previous > cost and previous - cost or 0
      else
        return nil
      end
      return struct_pack(SLIDING_COUNTER, ends, heard, previous, current)
    end,
    fresh_at = function(limit, state)
      local ends, at, previous, current = struct_unpack(SLIDING_COUNTER, state)
      return counters_fresh_at(limit, at, ends, previous, current)
    end,
  }
end
