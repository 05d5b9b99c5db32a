-- Twin of fixed_window.rs: one counter per window, windows aligned to the epoch.
--
-- A state is a string: when the window is due to end, the time of the last write, what was used.
local FIXED_WINDOW = '<I7I7I4'

local function window_limit(units, period)
  return { units = units, period = period }
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
  local due, at, used = struct_unpack(FIXED_WINDOW, state)
  local back, repair
  now, back = reconcile(at, now, slack)
  if back > 0 then
    due = due > back and due - back or 0
    repair = struct_pack(FIXED_WINDOW, due, now, used)
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
      if #state ~= 18 then
        return false
      end
      local due, at = struct_unpack(FIXED_WINDOW, state)
      return due <= LAST and at <= LAST_NOW
    end,
    decide = function(limit, state, cost, now, slack)
      local due, at, used, repair = window_reconcile(limit, state, now, slack)
      local units = limit.units
      local free = units > used and units - used or 0
      local taken = cost < free and cost or free
      local next
      if taken > 0 then
        next = struct_pack(FIXED_WINDOW, due, at, used + taken)
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
      return struct_pack(FIXED_WINDOW, due, at, used > cost and used - cost or 0)
    end,
    undo = function(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      local _, written_at = struct_unpack(FIXED_WINDOW, state)
      if is_other_clock(written_at, taken_at, now, slack) then
        return nil
      end
      local due, at, used = window_reconcile(limit, state, now, slack)
      if used == 0 or due ~= mark_at then
        return nil
      end
      return struct_pack(FIXED_WINDOW, due, at, used > cost and used - cost or 0)
    end,
    fresh_at = function(limit, state)
      local due, at, used = struct_unpack(FIXED_WINDOW, state)
      return used > 0 and next_boundary(due, limit.period) or at
    end,
  }
end
