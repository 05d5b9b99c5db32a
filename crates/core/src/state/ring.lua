-- Twin of ring.rs: a packed ring of runs, what the sliding log keeps.
--
-- Stored as one string: a header of numbers, then the slots of the runs. It is read through `read(offset, length)`, and
-- what a step changes is collected until `ring_writes`, so that no decision moves the whole of it.
local math_abs, table_sort, table_concat = math.abs, table.sort, table.concat
local string_rep, string_format = string.rep, string.format

local RING, RING_HEADER, RESERVED = '<BBBI4I4I4I7I7I7I7I7', 50, 0
-- A ring's own clock and count are set back from here on, long before they would leave the range of a double.
local REBASE_AT = 2251799813685248
-- More runs than any ring can have.
local RING_MAX = 2000000

-- Bits that numbers from 0 to `max` need.
local function ring_bits(max)
  local bits = 1
  while max >= 2 do
    max = (max - max % 2) / 2
    bits = bits + 1
  end
  return bits
end

-- The packing of a run: its moment and its count.
local function ring_shape(ring, time_bits, total_bits)
  local bits = time_bits + total_bits + 7
  local stride = (bits - bits % 8) / 8
  ring.time_bits, ring.total_bits, ring.stride = time_bits, total_bits, stride
  ring.time_turn, ring.total_turn = 2 ^ time_bits, 2 ^ total_bits
  -- Above 48 bits a run is two numbers. The boundary between them, in units of whichever of moment and count it cuts.
  ring.boundary = 2 ^ math_abs(48 - time_bits)
  ring.form = stride <= 6 and string_format('<I%d', stride) or string_format('<I6I%d', stride - 6)
end

local function ring_new(time_bits, total_bits, at)
  local ring = { capacity = 0, head = 0, len = 0, newest = 0, ahead = 0, total = 0, base = 0, at = at }
  ring_shape(ring, time_bits, total_bits)
  ring.slots, ring.seen, ring.body = {}, {}, ''
  return ring
end

-- The ring that begins with this header. Nothing if no ring does.
local function ring_open(header, read)
  if #header ~= RING_HEADER then
    return nil
  end
  local time_bits, total_bits, reserved, capacity, first, len, newest, ahead, total, base, at =
    struct_unpack(RING, header)
  local in_range = time_bits >= 1
    and time_bits <= 53
    and total_bits >= 1
    and total_bits <= 32
    and reserved == RESERVED
    and capacity <= RING_MAX
    and len <= capacity
    and (first < capacity or first == 0)
    and base <= total
    and total <= 4503599627370496
    and newest <= LAST
    and ahead <= 4503599627370496
    and at <= LAST_NOW
  if not in_range then
    return nil
  end
  local ring = {
    capacity = capacity,
    head = first,
    len = len,
    newest = newest,
    ahead = ahead,
    total = total,
    base = base,
    at = at,
  }
  ring_shape(ring, time_bits, total_bits)
  ring.slots, ring.seen, ring.read = {}, {}, read
  return ring
end

-- The moment of the last run, or of the last write if there is none.
local function ring_newest(ring)
  if ring.len == 0 then
    return ring.at
  end
  return ring.newest > ring.ahead and ring.newest - ring.ahead or 0
end

local function ring_slot_of(ring, index)
  local slot = ring.head + index
  return slot < ring.capacity and slot or slot - ring.capacity
end

-- The bytes of a slot: changed, known, or read. What is missing of a damaged one counts as zeros.
local function ring_bytes(ring, slot)
  local bytes = ring.slots[slot] or ring.seen[slot]
  if bytes then
    return bytes
  end
  local stride = ring.stride
  if ring.body then
    bytes = string_sub(ring.body, slot * stride + 1, (slot + 1) * stride)
  else
    bytes = ring.read(RING_HEADER + slot * stride, stride)
  end
  if #bytes < stride then
    bytes = bytes .. string_rep('\0', stride - #bytes)
  end
  ring.seen[slot] = bytes
  return bytes
end

-- All slots as one string, with what was changed.
local function ring_body(ring)
  local size = ring.capacity * ring.stride
  local body = ring.body or ring.read(RING_HEADER, size)
  if #body < size then
    body = body .. string_rep('\0', size - #body)
  end
  local changed = {}
  for slot in pairs(ring.slots) do
    changed[#changed + 1] = slot
  end
  if #changed == 0 then
    return body
  end
  table_sort(changed)
  local pieces, from = {}, 1
  for _, slot in ipairs(changed) do
    pieces[#pieces + 1] = string_sub(body, from, slot * ring.stride)
    pieces[#pieces + 1] = ring.slots[slot]
    from = (slot + 1) * ring.stride + 1
  end
  pieces[#pieces + 1] = string_sub(body, from)
  return table_concat(pieces)
end

-- The low bits of a moment and of a count, as packed.
local function run_unpack(ring, bytes)
  local low, high = struct_unpack(ring.form, bytes)
  local turn = ring.time_turn
  if ring.stride <= 6 then
    local time = low % turn
    return time, (low - time) / turn
  end
  if ring.time_bits <= 48 then
    local time = low % turn
    return time, (low - time) / turn + high * ring.boundary
  end
  local part = high % ring.boundary
  return low + part * 281474976710656, (high - part) / ring.boundary
end

local function run_pack(ring, time, total)
  if ring.stride <= 6 then
    return struct_pack(ring.form, time + total * ring.time_turn)
  end
  if ring.time_bits <= 48 then
    local part = total % ring.boundary
    return struct_pack(ring.form, time + part * ring.time_turn, (total - part) / ring.boundary)
  end
  local low = time % 281474976710656
  return struct_pack(ring.form, low, (time - low) / 281474976710656 + total * ring.boundary)
end

-- The moment and the count of a run; nothing behind the last.
local function ring_get(ring, index)
  if index >= ring.len then
    return nil
  end
  local time, total = run_unpack(ring, ring_bytes(ring, ring_slot_of(ring, index)))
  time = ring.newest - (ring.newest - time) % ring.time_turn - ring.ahead
  total = ring.total - (ring.total - total) % ring.total_turn
  return time > 0 and time or 0, total
end

local function ring_set(ring, index, time, total)
  ring.slots[ring_slot_of(ring, index)] =
    run_pack(ring, (time + ring.ahead) % ring.time_turn, total % ring.total_turn)
end

-- The index of the first run for which `before` does not hold: growing strides from the front, then the last one halved.
local function ring_find(ring, back, before)
  if not ring then
    return 0
  end
  local function holds(index)
    local time, total = ring_get(ring, index)
    return time and before(time > back and time - back or 0, total)
  end
  local low, high, stride = 0, 0, 1
  while holds(high) do
    low, high, stride = high + 1, high + stride, stride * 2
  end
  if high > ring.len then
    high = ring.len
  end
  while low < high do
    local middle = low + high
    middle = (middle - middle % 2) / 2
    if holds(middle) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- What is left when runs whose moment has passed are gone: the first that counts, the count before it, what is used.
local function ring_live(ring, back, passed)
  if not ring then
    return 0, 0, 0
  end
  local base = ring.base
  local first = ring_find(ring, back, function(time, total)
    return passed(time) or total <= ring.base
  end)
  if first > 0 then
    local _, total = ring_get(ring, first - 1)
    if total > base then
      base = total
    end
  end
  return first, base, ring.total - base
end

-- The units of one run alone.
local function ring_units(ring, index)
  local base = ring.base
  local function up_to(run)
    local _, total = ring_get(ring, run)
    return total and total > base and total or base
  end
  return up_to(index) - (index > 0 and up_to(index - 1) or base)
end

-- Reads many runs at once, before each of them is needed.
local function ring_fetch(ring, first)
  if ring.body or ring.len - first < 2 then
    return
  end
  local stride = ring.stride
  local function fetch(slot, count)
    local bytes = ring.read(RING_HEADER + slot * stride, count * stride)
    for index = 0, #bytes / stride - 1 do
      ring.seen[slot + index] = string_sub(bytes, index * stride + 1, (index + 1) * stride)
    end
  end
  local slot, count = ring_slot_of(ring, first), ring.len - first
  local upper = ring.capacity - slot
  if count <= upper then
    fetch(slot, count)
  else
    fetch(slot, upper)
    fetch(0, count - upper)
  end
end

-- Writes the run at `from` to `to`, with `units` more counted.
local function ring_move(ring, from, to, units)
  local time, total = run_unpack(ring, ring_bytes(ring, ring_slot_of(ring, from)))
  ring.slots[ring_slot_of(ring, to)] = run_pack(ring, time, (total + units) % ring.total_turn)
end

-- Takes units out of one run and so off every count behind it; a run left empty goes.
local function ring_cut(ring, index, units)
  ring_fetch(ring, index > 0 and index - 1 or 0)
  local run_units = ring_units(ring, index)
  if units > run_units then
    units = run_units
  end
  local emptied = units == run_units and 1 or 0
  local last = ring_get(ring, ring.len > 2 and ring.len - 2 or 0)
  for from = index + emptied, ring.len - 1 do
    ring_move(ring, from, from - emptied, -units)
  end
  if emptied > 0 and index + 1 == ring.len then
    ring.newest = last and last + ring.ahead or 0
  end
  ring.len = ring.len - emptied
  ring.total = ring.total - units
end

-- Appends a run, for which there is capacity.
local function ring_push(ring, time, total)
  ring.len = ring.len + 1
  ring_set(ring, ring.len - 1, time, total)
  ring.newest = time + ring.ahead
  ring.total = total
end

-- The same runs in a ring of another capacity.
local function ring_grow(ring, capacity)
  local body, stride = ring_body(ring), ring.stride
  local upper = ring.capacity - ring.head
  if upper > ring.len then
    upper = ring.len
  end
  ring.body = string_sub(body, ring.head * stride + 1, (ring.head + upper) * stride)
    .. string_sub(body, 1, (ring.len - upper) * stride)
    .. string_rep('\0', (capacity - ring.len) * stride)
  ring.slots, ring.seen = {}, {}
  ring.head, ring.capacity = 0, capacity
end

-- The same runs in another shape, on the store's clock and counted from zero.
local function ring_rebuild(ring, total_bits, capacity)
  ring_fetch(ring, 0)
  local rebuilt = ring_new(ring.time_bits, total_bits, ring.at)
  rebuilt.body, rebuilt.capacity = string_rep('\0', capacity * rebuilt.stride), capacity
  for index = 0, ring.len - 1 do
    local time, total = ring_get(ring, index)
    ring_push(rebuilt, time, total > ring.base and total - ring.base or 0)
  end
  ring.read = nil
  for name, value in pairs(rebuilt) do
    ring[name] = value
  end
end

-- Grows for one more run and for counts `span` apart: half as much again, but no more than the limit needs.
local function ring_ensure_capacity(ring, span, limit)
  local wide_enough = ring_bits(span) <= ring.total_bits
  local needed = ring.len + 1
  if wide_enough and needed <= ring.capacity then
    return
  end
  local capacity = needed + (needed - needed % 2) / 2
  if capacity > limit then
    capacity = limit
  end
  if capacity < needed then
    capacity = needed
  end
  if wide_enough then
    ring_grow(ring, capacity)
  else
    ring_rebuild(ring, ring_bits(span > limit and span or limit), capacity)
  end
end

local function ring_add(ring, time, units, limit)
  ring_ensure_capacity(ring, ring.total + units - ring.base, limit)
  local newest, total = ring_newest(ring), ring.total + units
  if ring.len == 0 or time > newest then
    ring_push(ring, time, total)
  else
    -- Requests of one instant share a run.
    ring.len = ring.len - 1
    ring_push(ring, newest, total)
  end
end

-- An edit that changes nothing but the time: what every edit starts from.
local function new_edit(at, back)
  return { at = at, back = back, cut_index = 0, cut_units = 0, drop = 0, base = 0, add_time = 0, add_units = 0 }
end

-- Carries out an edit under a limit of `limit` units.
local function ring_apply(ring, edit, limit)
  ring.at = edit.at
  ring.ahead = ring.ahead + edit.back
  if edit.cut_units > 0 then
    ring_cut(ring, edit.cut_index, edit.cut_units)
  end
  local drop = edit.drop < ring.len and edit.drop or ring.len
  ring.head = ring.head + drop
  if ring.head >= ring.capacity then
    ring.head = ring.head - ring.capacity
  end
  ring.len = ring.len - drop
  if edit.base > ring.base then
    ring.base = edit.base
  end
  if ring.base > ring.total then
    ring.total = ring.base
  end
  if ring.len == 0 then
    ring.ahead, ring.total, ring.base = 0, 0, 0
  elseif ring.ahead > REBASE_AT or ring.total > REBASE_AT or (ring.ahead > 0 and ring_get(ring, 0) == 0) then
    -- The last condition: the clock was set back so far that the first run counts as of the epoch. By the ring's own
    -- clock that run is older.
    ring_rebuild(ring, ring.total_bits, ring.capacity)
  end
  if edit.add_units > 0 then
    ring_add(ring, edit.add_time, edit.add_units, limit)
  end
end

-- What must be written: the whole string if there is a new one, or otherwise offsets and the bytes to write there.
local function ring_writes(ring)
  local header = struct_pack(
    RING,
    ring.time_bits,
    ring.total_bits,
    RESERVED,
    ring.capacity,
    ring.head,
    ring.len,
    ring.newest,
    ring.ahead,
    ring.total,
    ring.base,
    ring.at
  )
  if ring.body then
    return header .. ring_body(ring), nil
  end
  local changed, writes = {}, { 0, header }
  for slot in pairs(ring.slots) do
    changed[#changed + 1] = slot
  end
  table_sort(changed)
  local from = 1
  while from <= #changed do
    local to, pieces = from, { ring.slots[changed[from]] }
    while changed[to + 1] == changed[to] + 1 do
      to = to + 1
      pieces[#pieces + 1] = ring.slots[changed[to]]
    end
    writes[#writes + 1] = RING_HEADER + changed[from] * ring.stride
    writes[#writes + 1] = table_concat(pieces)
    from = to + 1
  end
  return nil, writes
end
