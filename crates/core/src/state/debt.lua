-- Twin of debt.rs: until when a limit is busy with past charges, what a token bucket, GCRA, a leaky bucket and a cell keep.
--
-- A state is a string: the end in us, the time of the last write, the fraction of the end with two flags above it, and as
-- much of the pace as the limit must remember. How much is the `form` of the limit, which is the format it is packed in.
local UNIT_DEBT, TIME_DEBT, NANO_DEBT = '<I7I7I4I4I6', '<I7I7I4I4', '<I7I7I4'
local DEBT_BYTES = { [UNIT_DEBT] = 28, [TIME_DEBT] = 22, [NANO_DEBT] = 18 }
-- Set in a rest once charges of different paces met, and once units were given back.
local HAS_MIXED_PACES, HAS_REFUND = 1073741824, 2147483648

-- What a meter with this form of states needs to know of it: the end of the string that its own states have.
local function debt_limit(parts, span, burst, form)
  local limit = meter(parts, span, burst)
  limit.form = form
  limit.bytes = DEBT_BYTES[form]
  limit.tail = string_sub(struct_pack(form, 0, 0, 0, parts, span), 19)
  return limit
end

-- The numbers of a state: end, last write, fraction, flags, and the pace it was written at.
local function debt_read(limit, state)
  local form = limit.form
  local us, at, rest, parts, span = struct_unpack(form, state)
  local frac = rest % HAS_MIXED_PACES
  if form == TIME_DEBT then
    span = limit.span
  elseif form == NANO_DEBT then
    parts, span = limit.parts, limit.span
  end
  local flags = rest - frac
  if frac >= parts then
    frac = parts - 1
  end
  return us, at, frac, flags, parts, span
end

-- Whether a limit can have written this string. One at this limit's own pace is taken at its word: no numbers in it can do
-- harm.
local function debt_is_state(limit, state)
  if #state ~= DEBT_BYTES[limit.form] then
    return false
  end
  if string_sub(state, 19) == limit.tail then
    return true
  end
  local us, at, frac, _, parts, span = debt_read(limit, state)
  return at <= us
    and at <= LAST_NOW
    and us <= LAST
    and parts > 0
    and parts <= 1000000000
    and span > 0
    and (limit.form ~= UNIT_DEBT or span <= 31622400000000)
end

local function debt_decide(limit, state, cost, now, slack)
  local us, frac, flags, forgotten, repair = now, 0, 0, LAST, nil
  local form = limit.form
  if state then
    local at, parts, span
    us, at, frac, flags, parts, span = debt_read(limit, state)
    local back = at - now
    if back > slack then
      us = us > back and us - back or 0
      at = now
      repair = struct_pack(form, us, at, frac + flags, parts, span)
    elseif back > 0 then
      now = at
    end
    local ends = frac > 0 and us + 1 or us
    local is_other = parts ~= limit.parts or span ~= limit.span
    if is_other and flags % HAS_REFUND < HAS_MIXED_PACES then
      flags = flags + HAS_MIXED_PACES
    end
    if ends <= now then
      us, frac = now, 0
    elseif is_other then
      if form == UNIT_DEBT then
        -- What was used stays used: counted out in units at the old pace, a begun one whole, and worked off at the new
        -- pace from the last write on.
        local units, rest = muldiv(us - at, parts, span)
        rest = rest + frac
        units = units + (rest - rest % span) / span
        if rest % span > 0 then
          units = units + 1
        end
        us, frac = muldiv(units, limit.span, limit.parts)
        us = us + at
        if us > LAST then
          us = LAST
        end
        forgotten = ends < LAST and ends or LAST
      else
        -- Time stays time; a fraction of another limit's is rounded up.
        us, frac = ends < LAST and ends or LAST, 0
      end
    end
  end
  local allowed, remaining, reset, wait, after_us, after_frac, start_us, start_frac =
    evaluate(limit, us, frac, forgotten, cost, now)
  local next
  if after_us then
    next = struct_pack(form, after_us, now, after_frac + flags, limit.parts, limit.span)
  end
  return allowed, remaining, reset, wait, next, repair, now + reset, start_us, start_frac, now
end

-- What a debt is at `now`, and when that is for its key. Nothing once it is done.
local function debt_reconcile(limit, state, now, slack)
  local us, at, frac, flags, parts, span = debt_read(limit, state)
  local back = at - now
  if back > slack then
    us = us > back and us - back or 0
    at = now
  elseif back > 0 then
    now = at
  end
  if (frac > 0 and us + 1 or us) <= now then
    return nil
  end
  return us, at, frac, flags, parts, span, now
end

-- With less to do, but not less than none.
local function debt_less(limit, us, at, frac, flags, parts, span, now, work_us, work_frac)
  us, frac = us - work_us, frac - work_frac
  if frac < 0 then
    us, frac = us - 1, frac + parts
  end
  if us < now then
    us, frac = now, 0
  end
  if flags < HAS_REFUND then
    flags = flags + HAS_REFUND
  end
  return struct_pack(limit.form, us, at, frac + flags, parts, span)
end

-- Gives units back at the pace they were taken at; where debt is time, time at the limit's own pace.
local function debt_refund(limit, state, cost, now, slack)
  local us, at, frac, flags, parts, span, reconciled = debt_reconcile(limit, state, now, slack)
  if not us then
    return nil
  end
  local work_us, work_frac
  if limit.form == UNIT_DEBT then
    work_us, work_frac = muldiv(cost, span, parts)
  else
    work_us, work_frac = muldiv(cost, limit.span, limit.parts)
    work_frac = muldiv(work_frac, parts, limit.parts)
  end
  return debt_less(limit, us, at, frac, flags, parts, span, reconciled, work_us, work_frac)
end

-- Takes back one charge that was made at this very pace.
local function debt_undo(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
  local us, at, frac, flags, parts, span, reconciled = debt_reconcile(limit, state, now, slack)
  local _, written_at = debt_read(limit, state)
  if is_other_clock(written_at, taken_at, now, slack) then
    return nil
  end
  if not us or parts ~= limit.parts or span ~= limit.span or mark_frac >= parts then
    return nil
  end
  local work_us, work_frac = time_of(limit, cost)
  local ends_us, ends_frac = mark_at + work_us, mark_frac + work_frac
  if ends_frac >= parts then
    ends_us, ends_frac = ends_us + 1, ends_frac - parts
  end
  local is_last = at == taken_at and us == ends_us and frac == ends_frac
  if not is_last and flags % HAS_REFUND >= HAS_MIXED_PACES then
    return nil
  end
  if not is_last and flags >= HAS_REFUND then
    mark_at, mark_frac = taken_at, 0
  end
  -- Time that has passed since the charge's turn came is gone for good.
  if reconciled > mark_at then
    local gone_us, gone_frac = reconciled - mark_at, -mark_frac
    if gone_frac < 0 then
      gone_us, gone_frac = gone_us - 1, gone_frac + parts
    end
    work_us, work_frac = work_us - gone_us, work_frac - gone_frac
    if work_frac < 0 then
      work_us, work_frac = work_us - 1, work_frac + parts
    end
  end
  if work_us < 0 or (work_us == 0 and work_frac == 0) then
    return nil
  end
  return debt_less(limit, us, at, frac, flags, parts, span, reconciled, work_us, work_frac)
end

-- When nothing is left, under any limit.
local function debt_fresh_at(limit, state)
  local us, _, frac = debt_read(limit, state)
  if frac > 0 and us < LAST then
    return us + 1
  end
  return us
end

-- The algorithm of a limit whose states have this form.
local function debt_algorithm(form)
  return {
    limit = function(parts, span, burst)
      return debt_limit(parts, span, burst, form)
    end,
    is_state = debt_is_state,
    decide = debt_decide,
    refund = debt_refund,
    undo = debt_undo,
    fresh_at = debt_fresh_at,
  }
end
