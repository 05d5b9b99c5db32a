-- Twin of concurrency.rs: at most so many in flight, each until it is released or its lease runs out. Its steps are edits
-- of a ring.

-- The bits of a moment within 366 days, whatever the limit's own ttl is.
local LEASE_TIME_BITS = 45

-- The leases at the moment of a decision: the time, what still counts, and an edit that drops what has run out.
local function leases_read(ring, now, slack)
  local back = 0
  if ring then
    now, back = heed(ring.at, now, slack)
  end
  local first, base, used = ring_live(ring, back, function(ends)
    return ends <= now
  end)
  local edit = edit_of(now, back)
  edit.drop, edit.base = first, base
  return now, back, first, used, edit
end

-- Takes out all of one lease, if it is held.
local function leases_cut(ring, lease, now, slack)
  local heard, _, first, _, edit = leases_read(ring, now, slack)
  local index = ring_of_lease(ring, lease, first)
  if not index then
    return nil
  end
  edit.cut_index, edit.cut_units = index, ring_units(ring, index)
  return edit, heard
end

local function concurrency()
  return {
    limit = function(slots, lease_ttl)
      return { units = slots, lease_ttl = lease_ttl }
    end,
    leased = true,
    decide = function(limit, ring, cost, now, slack)
      local back, used, next, _
      now, back, _, used, next = leases_read(ring, now, slack)
      local repair
      if back > 0 then
        repair = edit_of(now, back)
        repair.drop, repair.base = next.drop, next.base
      end
      local slots = limit.units
      local free = slots > used and slots - used or 0
      local allowed = cost <= free
      local ends = now + limit.lease_ttl
      local fresh_at = now
      if used > 0 then
        local newest = ring_newest(ring)
        fresh_at = newest > back and newest - back or 0
      end
      if not allowed or cost == 0 then
        next = nil
      else
        next.add_time, next.add_units = ends, cost
        free = free - cost
        if ends > fresh_at then
          fresh_at = ends
        end
      end
      local wait = 0
      if not allowed then
        wait = cost > slots and NEVER or UNKNOWN
      end
      local reset = fresh_at > now and fresh_at - now or 0
      return allowed, free, reset, wait, next, repair, fresh_at, ends, 0, now
    end,
    -- Gives back slots of the leases that end first. To give back one's own, release.
    refund = function(limit, ring, cost, now, slack)
      local _, back, _, used, edit = leases_read(ring, now, slack)
      if used == 0 then
        return nil
      end
      local base = edit.base + (cost < used and cost or used)
      edit.drop, edit.base =
        ring_find(ring, back, function(_, total)
          return total <= base
        end), base
      return edit
    end,
    undo = function(limit, ring, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      return (leases_cut(ring, lease, now, slack))
    end,
    release = function(limit, ring, lease, now, slack)
      return (leases_cut(ring, lease, now, slack))
    end,
    renew = function(limit, ring, lease, now, slack)
      local edit, heard = leases_cut(ring, lease, now, slack)
      if edit then
        edit.add_time, edit.add_units = heard + limit.lease_ttl, edit.cut_units
      end
      return edit
    end,
    keep = function(limit, ring, edit, lease)
      ring = ring or ring_new(LEASE_TIME_BITS, ring_bits(limit.units), true, edit.at)
      ring_apply(ring, edit, limit.units, lease)
      return ring
    end,
    fresh_at = function(_, ring)
      return ring_newest(ring)
    end,
  }
end
