-- Twin of cell.rs: GCRA in whole nanoseconds, as CL.THROTTLE speaks it.
--
-- Numbers that doubles do not hold are lists of 16 bits each, the lowest first; a long time has its seconds in that way, and
-- its nanoseconds as `ns`. Of a step in long times the caller gets only whether it passes and the state: it computes the
-- rest from those, which is why `remaining` is then COMPUTED.
local WIDE_CELL, WIDE_BYTES = '<I7I4I2I2I2I2I2I2I2I2', 27
local BASE, SECOND = 65536, 1000000000
local COMPUTED = 9007199254740992
-- More than any limit that is not wide.
local LARGEST = 9007199254740991

-- The lowest `count` digits of a number; of one that is a string its 8 bytes.
local function long_digits(number, count)
  if type(number) == 'string' then
    return { struct_unpack('<I2I2I2I2', number) }
  end
  local digits = {}
  for index = 1, count do
    local digit = number % BASE
    digits[index] = digit
    number = (number - digit) / BASE
  end
  return digits
end

local function long_time(us)
  local over = us % 1000000
  local time = long_digits((us - over) / 1000000, 8)
  time.ns = over * 1000
  return time
end

-- A time below another?
local function long_less(a, b)
  for index = 8, 1, -1 do
    if a[index] ~= b[index] then
      return a[index] < b[index]
    end
  end
  return a.ns < b.ns
end

local function long_plus(a, b)
  local sum = { ns = a.ns + b.ns }
  local carry = 0
  if sum.ns >= SECOND then
    sum.ns, carry = sum.ns - SECOND, 1
  end
  for index = 1, 8 do
    local digit = a[index] + b[index] + carry
    carry = digit >= BASE and 1 or 0
    sum[index] = digit - carry * BASE
  end
  return sum
end

-- The difference, not below zero.
local function long_minus(a, b)
  if not long_less(b, a) then
    return long_time(0)
  end
  local rest = { ns = a.ns - b.ns }
  local borrow = 0
  if rest.ns < 0 then
    rest.ns, borrow = rest.ns + SECOND, 1
  end
  for index = 1, 8 do
    local digit = a[index] - b[index] - borrow
    borrow = digit < 0 and 1 or 0
    rest[index] = digit + borrow * BASE
  end
  return rest
end

-- How long so many units take, in four digits, of an interval whose seconds are four digits.
local function long_times(interval, units)
  local digits, carry = {}, 0
  for index = 1, 4 do
    local sum = interval.ns * units[index] + carry
    digits[index] = sum % BASE
    carry = (sum - digits[index]) / BASE
  end
  digits[5] = carry % BASE
  digits[6] = (carry - digits[5]) / BASE
  local seconds, rest = { 0, 0, 0, 0, 0, 0, 0, 0 }, 0
  for index = 6, 1, -1 do
    local sum = rest * BASE + digits[index]
    rest = sum % SECOND
    seconds[index] = (sum - rest) / SECOND
  end
  local product = { ns = rest }
  carry = 0
  for index = 1, 8 do
    local sum = carry + seconds[index]
    for low = index > 4 and index - 3 or 1, index < 4 and index or 4 do
      sum = sum + interval[low] * units[index + 1 - low]
    end
    product[index] = sum % BASE
    carry = (sum - product[index]) / BASE
  end
  return product
end

-- Whole microseconds, and the nanoseconds left over. Nothing if no timestamp is that late.
local function long_micros(time)
  for index = 4, 8 do
    if time[index] > 0 then
      return nil
    end
  end
  local over = time.ns % 1000
  local us = (time[1] + time[2] * BASE + time[3] * BASE * BASE) * 1000000 + (time.ns - over) / 1000
  if us > LAST then
    return nil
  end
  return us, over
end

-- Rounded up to a whole microsecond, and at most the last timestamp.
local function long_ceil(time)
  local us, over = long_micros(time)
  if us and over > 0 and us < LAST then
    us = us + 1
  end
  return us or LAST
end

local function is_wide(limit, state)
  return limit.is_wide or (state and #state == WIDE_BYTES)
end

-- The end of a state, the time of its last write and its flags.
local function cell_read(state)
  if #state == WIDE_BYTES then
    local at, rest, d1, d2, d3, d4, d5, d6, d7, d8 = struct_unpack(WIDE_CELL, state)
    local ns = rest % HAS_MIXED_PACES
    return { d1, d2, d3, d4, d5, d6, d7, d8, ns = ns }, at, rest - ns
  end
  local us, at, rest = struct_unpack(NANO_DEBT, state)
  local frac = rest % HAS_MIXED_PACES
  local time = long_time(us)
  time.ns = time.ns + (frac < 1000 and frac or 999)
  return time, at, rest - frac
end

-- A state with this end: a wide one only if it ends after the last timestamp.
local function cell_write(ends, at, flags)
  local us, over = long_micros(ends)
  if us then
    return struct_pack(NANO_DEBT, us, at, over + flags)
  end
  return struct_pack(
    WIDE_CELL,
    at,
    ends.ns + flags,
    ends[1],
    ends[2],
    ends[3],
    ends[4],
    ends[5],
    ends[6],
    ends[7],
    ends[8]
  )
end

-- The end of a state on the clock of `now`, the time of its last write, its flags, that time, and whether the clock was set
-- back.
local function cell_reconcile(state, now, slack)
  if not state then
    return long_time(now), now, 0, now, false
  end
  local ends, at, flags = cell_read(state)
  local back = at - now
  if back > slack then
    return long_minus(ends, long_time(back)), now, flags, now, true
  end
  return ends, at, flags, back > 0 and at or now, false
end

local function cell_decide(limit, state, cost, now, slack)
  local start, at, flags, stepped
  start, at, flags, now, stepped = cell_reconcile(state, now, slack)
  local repair = stepped and cell_write(start, at, flags) or nil
  local present = long_time(now)
  if long_ceil(start) <= now then
    start = present
  end
  local units = long_digits(cost, 4)
  local ceiling = long_plus(present, long_times(limit.interval, limit.units))
  local after = long_plus(start, long_times(limit.interval, units))
  local is_none = cost == 0
  local allowed = is_none or not long_less(ceiling, after)
  local ends, next, wait = start, nil, 0
  if not is_none and allowed then
    ends = after
    next = cell_write(after, now, flags)
  elseif not allowed then
    local most = limit.units
    wait = long_ceil(long_minus(after, long_minus(ceiling, present))) - now
    for index = 4, 1, -1 do
      if units[index] ~= most[index] then
        wait = units[index] > most[index] and NEVER or wait
        break
      end
    end
    if long_less(start, ceiling) then
      next = cell_write(ceiling, now, flags)
    end
  end
  local fresh_at = long_ceil(ends)
  return allowed, COMPUTED, fresh_at - now, wait, next, repair, fresh_at, 0, 0, now
end

local function cell_refund(limit, state, cost, now, slack)
  local ends, at, flags
  ends, at, flags, now = cell_reconcile(state, now, slack)
  if long_ceil(ends) <= now then
    return nil
  end
  local present = long_time(now)
  ends = long_minus(ends, long_times(limit.interval, long_digits(cost, 4)))
  if long_less(ends, present) then
    ends = present
  end
  return cell_write(ends, at, flags < HAS_REFUND and flags + HAS_REFUND or flags)
end

local function cell()
  local algorithm = debt_algorithm(NANO_DEBT)
  algorithm.limit = function(n1, n2, n3, n4)
    local limit
    if n4 == 0 then
      limit = debt_limit(n1, n2, n3, NANO_DEBT)
      -- In long times too, for a key that a call with larger numbers left.
      local over = n2 % SECOND
      limit.interval, limit.units = long_digits((n2 - over) / SECOND, 4), long_digits(n3, 4)
      limit.interval.ns = over
    else
      local ns = n2 % HAS_MIXED_PACES
      limit = { is_wide = true, bytes = DEBT_BYTES[NANO_DEBT], interval = long_digits(n1, 3), units = long_digits(n3, 3) }
      limit.interval[4], limit.interval.ns = (n2 - ns) / HAS_MIXED_PACES, ns
      limit.units[4] = n4 - 1
    end
    return limit
  end
  algorithm.is_state = function(limit, state)
    if #state == WIDE_BYTES then
      local ends, at = cell_read(state)
      return at <= LAST_NOW and ends.ns < SECOND and ends[8] < 32768 and not long_micros(ends)
    end
    if not limit.is_wide then
      return debt_is_state(limit, state)
    end
    if #state ~= DEBT_BYTES[NANO_DEBT] then
      return false
    end
    local us, at, rest = struct_unpack(NANO_DEBT, state)
    return at <= us and at <= LAST_NOW and us <= LAST and rest % HAS_MIXED_PACES < 1000
  end
  algorithm.decide = function(limit, state, cost, now, slack)
    if is_wide(limit, state) then
      return cell_decide(limit, state, cost, now, slack)
    end
    return debt_decide(limit, state, type(cost) == 'number' and cost or LARGEST, now, slack)
  end
  algorithm.refund = function(limit, state, cost, now, slack)
    if is_wide(limit, state) then
      return cell_refund(limit, state, cost, now, slack)
    end
    return debt_refund(limit, state, type(cost) == 'number' and cost or LARGEST, now, slack)
  end
  -- Nothing in long times: their marks have no position.
  algorithm.undo = function(limit, state, ...)
    return not is_wide(limit, state) and debt_undo(limit, state, ...) or nil
  end
  algorithm.fresh_at = function(_, state)
    return long_ceil((cell_read(state)))
  end
  return algorithm
end
