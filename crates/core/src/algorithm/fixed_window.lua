-- Twin of fixed_window.rs: one counter per window, windows aligned to the epoch or to a calendar.
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

-- Of a calendar the second number is a boundary, and the others are the lengths of the next windows in seconds, two to a
-- number.
local function window_limit(units, period, lengths, more_lengths)
  if not lengths or lengths == 0 then
    return { units = units, period = period, bytes = 18 }
  end
  local one, three = lengths % 33554432, more_lengths % 33554432
  local two, four = (lengths - one) / 33554432, (more_lengths - three) / 33554432
  local boundaries = { period, period + one * 1000000 }
  boundaries[3] = boundaries[2] + two * 1000000
  boundaries[4] = boundaries[3] + three * 1000000
  boundaries[5] = boundaries[4] + four * 1000000
  -- Windows longer than a day: a due time shortly after a boundary is that of another zone.
  return { units = units, boundaries = boundaries, zone_spread = one > 172800 and 93600000000 or 0, bytes = 18 }
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

-- The same for windows of a calendar. Times that its boundaries do not enclose continue the nearest length: the caller
-- chose them for a clock that is off by most of a window.
local function calendar_boundary(boundaries, moment)
  local first, second, last = boundaries[1], boundaries[2], boundaries[5]
  if moment <= first then
    local length = second - first
    local over = first - moment
    return first - (over - over % length)
  end
  for index = 2, 5 do
    if boundaries[index] >= moment then
      return boundaries[index]
    end
  end
  local length = last - boundaries[4]
  local over = moment - last
  local boundary = last + over + (length - over % length) % length
  return boundary < LAST and boundary or LAST
end

local function boundary_from(limit, moment)
  if limit.boundaries then
    return calendar_boundary(limit.boundaries, moment)
  end
  return next_boundary(moment, limit.period)
end

-- The end of a window that was due to end at a time.
local function window_end(limit, due)
  if limit.boundaries then
    local spread = limit.zone_spread
    return calendar_boundary(limit.boundaries, due > spread and due - spread or 0)
  end
  return next_boundary(due, limit.period)
end

-- The window that a decision sees, an empty one if there is none, and what to write back after a step of the clock.
local function window_reconcile(limit, state, now, slack)
  if not state then
    return boundary_from(limit, now + 1), now, 0, nil
  end
  local due, at, used = window_read(state)
  local back, repair
  now, back = reconcile(at, now, slack)
  if back > 0 then
    due = due > back and due - back or 0
    repair = window_write(due, now, used)
  end
  if used > 0 and window_end(limit, due) > now then
    return due, now, used, repair
  end
  return boundary_from(limit, now + 1), now, 0, repair
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
        wait = window_end(limit, due) - at
      end
      local fresh_at = used > 0 and window_end(limit, due) or at
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
      return used > 0 and window_end(limit, due) or at
    end,
  }
end
