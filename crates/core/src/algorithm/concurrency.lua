-- Twin of concurrency.rs: at most so many in flight, each until it is released or its lease expires. Its steps are edits
-- of a table of leases.

-- The leases at the moment of a decision: the time, how far the clock was set back, the units in use, and an edit that
-- drops what has expired.
local function leases_read(leases, now, slack)
  local back, expired, used = 0, 0, 0
  if leases then
    now, back = reconcile(leases.at, now, slack)
    expired, used = leases_expired(leases, now, back)
    used = leases.used - used
  end
  return now, back, used, { at = now, back = back, release = 0, drop = expired, trim = 0, add_end = 0, add_units = 0 }
end

-- Takes out one lease, if it is held: the edit, the time and the units.
local function leases_release(leases, id, now, slack)
  local back, edit, _
  now, back, _, edit = leases_read(leases, now, slack)
  local number, units = leases_find(leases, id, now, back)
  if not number then
    return nil
  end
  edit.release = number
  return edit, now, units
end

local function concurrency()
  return {
    limit = function(slots, lease_ttl)
      return { units = slots, lease_ttl = lease_ttl }
    end,
    -- The header and the first slots: of most tables all.
    open_bytes = LEASES_HEADER + 64 * SLOT_BYTES,
    open = leases_open,
    writes = leases_writes,
    numbers = { 'at', 'back', 'release', 'drop', 'trim', 'add_end', 'add_units' },
    decide = function(limit, leases, cost, now, slack)
      local back, used, next
      now, back, used, next = leases_read(leases, now, slack)
      local repair
      if back > 0 then
        repair = { at = now, back = back, release = 0, drop = next.drop, trim = 0, add_end = 0, add_units = 0 }
      end
      local slots = limit.units
      local free = slots > used and slots - used or 0
      local allowed = cost <= free
      local ends = now + limit.lease_ttl
      local fresh_at = now
      if used > 0 then
        local last = leases_slot(leases, leases.tail).ends
        fresh_at = last > back and last - back or 0
      end
      if not allowed or cost == 0 then
        next = nil
      else
        next.add_end, next.add_units = ends, cost
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
    -- Returns slots of the leases that end first. A holder releases its own lease instead.
    refund = function(limit, leases, cost, now, slack)
      local _, _, used, edit = leases_read(leases, now, slack)
      if used == 0 then
        return nil
      end
      if cost > used then
        cost = used
      end
      local slot = leases_slot(leases, leases.head)
      for _ = 1, edit.drop do
        slot = leases_slot(leases, slot.next)
      end
      while slot and slot.units <= cost do
        cost, edit.drop = cost - slot.units, edit.drop + 1
        slot = leases_slot(leases, slot.next)
      end
      edit.trim = cost
      return edit
    end,
    undo = function(limit, leases, cost, mark_at, mark_frac, taken_at, lease, now, slack)
      return (leases_release(leases, lease, now, slack))
    end,
    release = function(limit, leases, lease, now, slack)
      return (leases_release(leases, lease, now, slack))
    end,
    renew = function(limit, leases, lease, now, slack)
      local edit, reconciled, units = leases_release(leases, lease, now, slack)
      if edit then
        edit.add_end, edit.add_units = reconciled + limit.lease_ttl, units
      end
      return edit
    end,
    keep = function(limit, leases, edit, lease)
      leases = leases or leases_new(edit.at)
      leases_apply(leases, edit, lease)
      return leases
    end,
    fresh_at = function(_, leases)
      local tail = leases_slot(leases, leases.tail)
      return tail and tail.ends or leases.at
    end,
  }
end
