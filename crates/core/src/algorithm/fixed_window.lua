-- Twin of fixed_window.rs: one counter per window, windows aligned to the epoch.
--
-- A state is a string: when the window is due to end, the time of the last write, what was used; wide if four bytes do
-- not hold that.
local FIXED_WINDOW, WIDE_WINDOW = '<I7I7I4', '<I7I7I7'
-- The largest count in four bytes, and the largest of any limit.
local NARROW, UNITS = 4294967295, 999999999999999

local function window_read(state)
  return struct_unpack(#state == 18 and FIXED_WINDOW or WIDE_WINDOW, state)
end

local function window_write(due, at, used)
  return struct_pack(used <= NARROW and FIXED_WINDOW or WIDE_WINDOW, due, at, used)
end

local function window_limit(units, period)
  return { units = units, period = period, bytes = 18 }
end

-- The first window boundary at or after a time.
local function next_boundary(moment, period)
  local over = moment % period
  if over == 0 then
    return moment
  end
  local boundary = moment - over + period
  return boundary < LAST and boundary or LAST
end

-- The window that a decision sees, an empty one if there is none, and what to write back after a step of the clock.
local function window_reconcile(limit, state, now, slack)
  local period = limit.period
  if not state then
    return next_boundary(now + 1, period), now, 0, nil
  end
  local due, at, used = window_read(state)
  local back, repair
  now, back = reconcile(at, now, slack)
  if back > 0 then
    due = due > back and due - back or 0
    repair = window_write(due, now, used)
  end
  if used > 0 and next_boundary(due, period) > now then
    return due, now, used, repair
  end
  return next_boundary(now + 1, period), now, 0, repair
end

local function fixed_window()
  return {
    limit = window_limit,
    is_state = function(_, state)
      if #state ~= 18 and #state ~= 21 then
        return false
      end
      local due, at, used = window_read(state)
      return due <= LAST and at <= LAST_NOW and used <= UNITS
    end,
    decide = function(limit, state, cost, now, slack)
      local due, at, used, repair = window_reconcile(limit, state, now, slack)
      local units = limit.units
      local free = units > used and units - used or 0
      local taken = cost < free and cost or free
      local next
      if taken > 0 then
        next = window_write(due, at, used + taken)
      end
      local allowed = cost <= free
      local wait = 0
      if allowed then
        free = free - taken
        used = used + taken
      elseif cost > units then
        wait = NEVER
      else
        wait = next_boundary(due, limit.period) - at
      end
      local fresh_at = used > 0 and next_boundary(due, limit.period) or at
      return allowed, free, fresh_at - at, wait, next, repair, fresh_at, due, 0, at
    end,
    refund = function(limit, state, cost, now, slack)
      local due, at, used = window_reconcile(limit, state, now, slack)
      if used == 0 then
        return nil
      end
      return window_write(due, at, used > cost and used - cost or 0)
    end,
    undo = function(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      local _, written_at = window_read(state)
      if is_other_clock(written_at, taken_at, now, slack) then
        return nil
      end
      local due, at, used = window_reconcile(limit, state, now, slack)
      if used == 0 or due ~= mark_at then
        return nil
      end
      return window_write(due, at, used > cost and used - cost or 0)
    end,
    fresh_at = function(limit, state)
      local due, at, used = window_read(state)
      return used > 0 and next_boundary(due, limit.period) or at
    end,
  }
end
