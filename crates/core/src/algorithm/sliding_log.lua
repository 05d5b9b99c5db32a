-- Twin of sliding_log.rs: remembers every admitted request, so the rolling window is exact. Its steps are edits of a ring.

local function log_fresh_at(limit, ring)
  return ring.len > 0 and ring_newest(ring) + limit.period or ring.at
end

-- The log at the moment of a decision: its ring unless that is past its time, the time, what still counts, an edit to
-- start from, and the same if it must be written back.
local function log_read(limit, ring, now, slack)
  local back = 0
  if ring then
    now, back = reconcile(ring.at, now, slack)
    if log_fresh_at(limit, ring) - back <= now then
      ring = nil
    end
  end
  local period = limit.period
  local first, base, used = ring_live(ring, back, function(stamp)
    return stamp + period <= now
  end)
  return ring, now, back, first, base, used
end

-- The moment of the last run.
local function log_last(ring, back)
  if not ring or ring.len == 0 then
    return nil
  end
  local newest = ring_newest(ring)
  return newest > back and newest - back or 0
end

local function sliding_log()
  return {
    limit = function(units, period, min_interval)
      return { units = units, period = period, min_interval = min_interval }
    end,
    open_bytes = RING_HEADER,
    open = ring_open,
    writes = ring_writes,
    numbers = { 'at', 'back', 'cut_index', 'cut_units', 'drop', 'base', 'add_time', 'add_units' },
    decide = function(limit, ring, cost, now, slack)
      local back, first, base, used
      ring, now, back, first, base, used = log_read(limit, ring, now, slack)
      local units, period, min_interval = limit.units, limit.period, limit.min_interval
      local repair = back > 0 and new_edit(now, back) or nil
      local last = log_last(ring, back)
      local interval_end = last and min_interval > 0 and last + min_interval or now
      local free = units > used and units - used or 0
      local passable = interval_end > now and 0 or free
      local taken = cost < passable and cost or passable
      local next
      if taken > 0 then
        next = new_edit(now, back)
        next.drop, next.base, next.add_time, next.add_units = first, base, now, taken
      end
      if cost > 0 and cost <= passable then
        local remaining = min_interval > 0 and 0 or free - cost
        return true, remaining, period, 0, next, repair, now + period, now, 0, now
      end
      local reset_at = interval_end > now and interval_end or now
      if last and used > 0 then
        reset_at = last + period
      end
      local wait = 0
      if cost > units then
        wait = NEVER
      elseif cost > 0 then
        -- Enough units have left and the last request is long enough ago.
        local excess = used + cost - units
        local allowed_at = interval_end
        if excess > 0 then
          local free_at = now
          local time = ring
            and ring_get(ring, ring_find(ring, back, function(_, total)
              return total < base + excess
            end))
          if time then
            free_at = (time > back and time - back or 0) + period
          end
          if free_at > allowed_at then
            allowed_at = free_at
          end
        end
        wait = allowed_at > now and allowed_at - now or 0
      end
      local fresh_at = last and last + period or now
      local reset = reset_at > now and reset_at - now or 0
      return cost == 0, passable, reset, wait, next, repair, fresh_at, now, 0, now
    end,
    -- Returns the oldest units. The last run stays even when empty: it is what `min_interval` is counted from.
    refund = function(limit, ring, cost, now, slack)
      local back, _, base, used
      ring, now, back, _, base, used = log_read(limit, ring, now, slack)
      if used == 0 then
        return nil
      end
      base = base + (cost < used and cost or used)
      local dropped = ring_find(ring, back, function(_, total)
        return total <= base
      end)
      local edit = new_edit(now, back)
      edit.drop, edit.base = dropped < ring.len and dropped or ring.len - 1, base
      return edit
    end,
    undo = function(limit, ring, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      local written_at = ring.at
      if is_other_clock(written_at, taken_at, now, slack) then
        return nil
      end
      local back, first
      ring, now, back, first = log_read(limit, ring, now, slack)
      local index = ring_find(ring, back, function(time)
        return time < mark_at
      end)
      if index < first then
        index = first
      end
      local time = ring and ring_get(ring, index)
      if not time or (time > back and time - back or 0) ~= mark_at then
        return nil
      end
      local edit = new_edit(now, back)
      edit.cut_index, edit.cut_units = index, cost
      return edit
    end,
    -- The ring after an edit. An expired one is replaced, not edited: its times may be ambiguous.
    keep = function(limit, ring, edit)
      if not ring or log_fresh_at(limit, ring) - edit.back <= edit.at then
        ring = ring_new(ring_bits(limit.period), ring_bits(limit.units), edit.at)
      end
      ring_apply(ring, edit, limit.units)
      return ring
    end,
    fresh_at = log_fresh_at,
  }
end
