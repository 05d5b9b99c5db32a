-- Twin of meter.rs: debt measured in time, exact to a fraction of a microsecond.
--
-- `parts` units take `span` us. A time is a pair: whole microseconds and parts of one.

-- A meter: its pace in lowest terms, the most it holds, and how long one unit and a full burst take.
local function meter(parts, span, burst)
  local one_us, one_frac = muldiv(1, span, parts)
  local full_us, full_frac = muldiv(burst, span, parts)
  return {
    parts = parts,
    span = span,
    burst = burst,
    one_us = one_us,
    one_frac = one_frac,
    full_us = full_us,
    full_frac = full_frac,
    -- Filled in by others; a table that grows is dear.
    form = false,
    tail = false,
    bytes = false,
    policy = false,
    algorithm = false,
    decide = false,
    is_ring = false,
  }
end

-- How long a cost takes, one that is more than the limit holds as long as that.
local function time_of(meter, cost)
  if cost == 1 then
    return meter.one_us, meter.one_frac
  end
  if cost > meter.burst then
    cost = meter.burst
  end
  return muldiv(cost, meter.span, meter.parts)
end

-- How many whole units fit in some room; none in less than none.
local function units_in(meter, us, frac)
  if us < 0 then
    return 0
  end
  local span = meter.span
  local work = (us + 0.0) * meter.parts + frac
  if work < 9007199254740992 then
    return (work - work % span) / span
  end
  local units, rest = muldiv(us, meter.parts, span)
  rest = rest + frac
  return units + (rest - rest % span) / span
end

-- Decides a cost at `now` for a limit busy until (us, frac), whose key is forgotten at `forgotten` at the latest.
--
-- Says whether it passes, what remains, when the key is as good as new, how long until it passes (NEVER if never), when
-- the work ends if it is kept (nil if nothing changes), and when its own work begins.
local function evaluate(meter, us, frac, forgotten, cost, now)
  if us < now then
    us, frac = now, 0
  end
  local parts = meter.parts
  -- What fits between the end of the work and the ceiling, now + full. The fraction is never negative, the whole may be.
  local room_us, room_frac = meter.full_us - (us - now), meter.full_frac - frac
  if room_frac < 0 then
    room_us, room_frac = room_us - 1, room_frac + parts
  end

  local time_us, time_frac
  if cost == 1 then
    time_us, time_frac = meter.one_us, meter.one_frac
  elseif cost > 0 and cost <= meter.burst then
    time_us, time_frac = muldiv(cost, meter.span, parts)
  end
  local wait = NEVER
  if time_us then
    local left_us, left_frac = room_us - time_us, room_frac - time_frac
    if left_frac < 0 then
      left_us, left_frac = left_us - 1, left_frac + parts
    end
    if left_us >= 0 then
      local after_us, after_frac = us + time_us, frac + time_frac
      if after_frac >= parts then
        after_us, after_frac = after_us + 1, after_frac - parts
      end
      local reset = after_us - now
      if after_frac > 0 then
        reset = reset + 1
      end
      return true, units_in(meter, left_us, left_frac), reset, 0, after_us, after_frac, us, frac
    end
    -- What is missing, rounded up.
    wait = -left_us
    if wait > forgotten - now then
      wait = forgotten - now
    end
  end

  local reset_at = us
  if frac > 0 then
    reset_at = us + 1
  end
  if reset_at > forgotten then
    reset_at = forgotten
  end
  local remaining = units_in(meter, room_us, room_frac)
  if cost == 0 then
    return true, remaining, reset_at - now, 0, nil, nil, us, frac
  end
  -- Kept all the same, it takes all that is left.
  if room_us > 0 or (room_us == 0 and room_frac > 0) then
    return false, remaining, reset_at - now, wait, now + meter.full_us, meter.full_frac, us, frac
  end
  return false, remaining, reset_at - now, wait, nil, nil, us, frac
end
