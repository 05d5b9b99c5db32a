-- Twin of ring.rs: a packed ring of runs, what the sliding log and the concurrency limit keep.
--
-- Stored as one string: a head of numbers, then the slots of the runs. It is read through `read(offset, length)`, and what
-- a step changes is gathered here until `ring_writes` tells it, so that no decision moves the whole of it.
local math_abs, table_sort, table_concat = math.abs, table.sort, table.concat
local string_rep, string_find, string_format = string.rep, string.find, string.format

local RING, RING_HEAD = '<BBBI4I4I4I7I7I7I7I7', 50
-- Where a ring's own clock and count are set back, long before they would leave the range of a double.
local RING_FAR = 2251799813685248
-- More runs than any ring can have.
local RING_MOST = 2000000

-- Bits that tell 0 to `most` apart.
local function ring_bits(most)
  local bits = 1
  while most >= 2 do
    most = (most - most % 2) / 2
    bits = bits + 1
  end
  return bits
end

-- How a run is packed: its moment, its count, and the id of its lease if it has one.
local function ring_shape(ring, time_bits, total_bits, leased)
  local bits = time_bits + total_bits + 7
  local packed = (bits - bits % 8) / 8
  ring.time_bits, ring.total_bits, ring.leased = time_bits, total_bits, leased
  ring.packed = packed
  ring.stride = packed + (leased and 8 or 0)
  ring.time_turn, ring.total_turn = 2 ^ time_bits, 2 ^ total_bits
  -- Above 48 bits a run is two numbers. Where they part, in units of whichever of moment and count is cut in two.
  ring.seam = 2 ^ math_abs(48 - time_bits)
  ring.form = packed <= 6 and string_format('<I%d', packed) or string_format('<I6I%d', packed - 6)
end

local function ring_new(time_bits, total_bits, leased, at)
  local ring = { capacity = 0, head = 0, len = 0, newest = 0, ahead = 0, total = 0, base = 0, at = at }
  ring_shape(ring, time_bits, total_bits, leased)
  ring.slots, ring.seen, ring.body = {}, {}, ''
  return ring
end

-- The ring that begins with this head. Nothing if no ring does.
function ring_open(head, leased, read)
  if #head ~= RING_HEAD then
    return nil
  end
  local time_bits, total_bits, is_leased, capacity, first, len, newest, ahead, total, base, at = struct_unpack(RING, head)
  local in_range = time_bits >= 1
    and time_bits <= 53
    and total_bits >= 1
    and total_bits <= 32
    and is_leased == (leased and 1 or 0)
    and capacity <= RING_MOST
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
  ring_shape(ring, time_bits, total_bits, leased)
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

local function ring_place(ring, index)
  local place = ring.head + index
  return place < ring.capacity and place or place - ring.capacity
end

-- The bytes of a slot: changed, known, or read. What is missing of a damaged one counts as zeros.
local function ring_slot(ring, place)
  local bytes = ring.slots[place] or ring.seen[place]
  if bytes then
    return bytes
  end
  local stride = ring.stride
  if ring.body then
    bytes = string_sub(ring.body, place * stride + 1, (place + 1) * stride)
  else
    bytes = ring.read(RING_HEAD + place * stride, stride)
  end
  if #bytes < stride then
    bytes = bytes .. string_rep('\0', stride - #bytes)
  end
  ring.seen[place] = bytes
  return bytes
end

-- All slots as one string, with what was changed.
local function ring_body(ring)
  local size = ring.capacity * ring.stride
  local body = ring.body or ring.read(RING_HEAD, size)
  if #body < size then
    body = body .. string_rep('\0', size - #body)
  end
  local places = {}
  for place in pairs(ring.slots) do
    places[#places + 1] = place
  end
  if #places == 0 then
    return body
  end
  table_sort(places)
  local pieces, from = {}, 1
  for _, place in ipairs(places) do
    pieces[#pieces + 1] = string_sub(body, from, place * ring.stride)
    pieces[#pieces + 1] = ring.slots[place]
    from = (place + 1) * ring.stride + 1
  end
  pieces[#pieces + 1] = string_sub(body, from)
  return table_concat(pieces)
end

-- The low bits of a moment and of a count, as packed.
local function run_unpack(ring, bytes)
  local low, high = struct_unpack(ring.form, bytes)
  local turn = ring.time_turn
  if ring.packed <= 6 then
    local time = low % turn
    return time, (low - time) / turn
  end
  if ring.time_bits <= 48 then
    local time = low % turn
    return time, (low - time) / turn + high * ring.seam
  end
  local part = high % ring.seam
  return low + part * 281474976710656, (high - part) / ring.seam
end

local function run_pack(ring, time, total)
  if ring.packed <= 6 then
    return struct_pack(ring.form, time + total * ring.time_turn)
  end
  if ring.time_bits <= 48 then
    local part = total % ring.seam
    return struct_pack(ring.form, time + part * ring.time_turn, (total - part) / ring.seam)
  end
  local low = time % 281474976710656
  return struct_pack(ring.form, low, (time - low) / 281474976710656 + total * ring.seam)
end

-- The moment, the count and the lease of a run; nothing behind the last.
local function ring_get(ring, index)
  if index >= ring.len then
    return nil
  end
  local bytes = ring_slot(ring, ring_place(ring, index))
  local time, total = run_unpack(ring, bytes)
  time = ring.newest - (ring.newest - time) % ring.time_turn - ring.ahead
  total = ring.total - (ring.total - total) % ring.total_turn
  return time > 0 and time or 0, total, ring.leased and string_sub(bytes, ring.packed + 1) or nil
end

local function ring_set(ring, index, time, total, lease)
  local bytes = run_pack(ring, (time + ring.ahead) % ring.time_turn, total % ring.total_turn)
  ring.slots[ring_place(ring, index)] = ring.leased and bytes .. lease or bytes
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
  local function up_to(place)
    local _, total = ring_get(ring, place)
    return total and total > base and total or base
  end
  return up_to(index) - (index > 0 and up_to(index - 1) or base)
end

-- The run with this lease, from one on: the first one in the order of the ring.
local function ring_of_lease(ring, lease, from)
  local body, stride, packed = ring_body(ring), ring.stride, ring.packed
  local found
  local at = string_find(body, lease, 1, true)
  while at do
    local offset = at - 1 - packed
    if offset % stride == 0 then
      local index = offset / stride - ring.head
      if index < 0 then
        index = index + ring.capacity
      end
      if index >= from and index < ring.len and (not found or index < found) then
        found = index
      end
    end
    at = string_find(body, lease, at + 1, true)
  end
  return found
end

-- Reads many runs at once, before each of them is asked for.
local function ring_fetch(ring, first)
  if ring.body or ring.len - first < 2 then
    return
  end
  local stride = ring.stride
  local function fetch(place, count)
    local bytes = ring.read(RING_HEAD + place * stride, count * stride)
    for slot = 0, #bytes / stride - 1 do
      ring.seen[place + slot] = string_sub(bytes, slot * stride + 1, (slot + 1) * stride)
    end
  end
  local place, count = ring_place(ring, first), ring.len - first
  local upper = ring.capacity - place
  if count <= upper then
    fetch(place, count)
  else
    fetch(place, upper)
    fetch(0, count - upper)
  end
end

-- Writes the run at `from` to `to`, with `units` more counted.
local function ring_move(ring, from, to, units)
  local bytes = ring_slot(ring, ring_place(ring, from))
  local time, total = run_unpack(ring, bytes)
  local moved = run_pack(ring, time, (total + units) % ring.total_turn)
  ring.slots[ring_place(ring, to)] = ring.leased and moved .. string_sub(bytes, ring.packed + 1) or moved
end

-- Takes units out of one run and so off every count behind it; a run left empty goes.
local function ring_cut(ring, index, units)
  ring_fetch(ring, index > 0 and index - 1 or 0)
  local own = ring_units(ring, index)
  if units > own then
    units = own
  end
  local emptied = units == own and 1 or 0
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

-- Appends a run; there must be room.
local function ring_push(ring, time, total, lease)
  ring.len = ring.len + 1
  ring_set(ring, ring.len - 1, time, total, lease)
  ring.newest = time + ring.ahead
  ring.total = total
end

-- Puts a run where its moment belongs, and its units on every count behind it.
local function ring_insert(ring, time, units, lease)
  local place = ring_find(ring, 0, function(moment)
    return moment <= time
  end)
  local before = ring.base
  if place > 0 then
    local _, total = ring_get(ring, place - 1)
    if total > before then
      before = total
    end
  end
  ring_fetch(ring, place)
  for from = ring.len - 1, place, -1 do
    ring_move(ring, from, from + 1, units)
  end
  ring.len = ring.len + 1
  ring.total = ring.total + units
  ring_set(ring, place, time, before + units, lease)
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
  local rebuilt = ring_new(ring.time_bits, total_bits, ring.leased, ring.at)
  rebuilt.body, rebuilt.capacity = string_rep('\0', capacity * rebuilt.stride), capacity
  for index = 0, ring.len - 1 do
    local time, total, lease = ring_get(ring, index)
    ring_push(rebuilt, time, total > ring.base and total - ring.base or 0, lease)
  end
  ring.read = nil
  for name, value in pairs(rebuilt) do
    ring[name] = value
  end
end

-- Makes room for one more run and for counts `span` apart: half as much again, but no more than the limit asks for.
local function ring_make_room(ring, span, limit)
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

local function ring_add(ring, time, units, limit, lease)
  ring_make_room(ring, ring.total + units - ring.base, limit)
  local newest = ring_newest(ring)
  if ring.len == 0 or time > newest then
    ring_push(ring, time, ring.total + units, lease)
  elseif time == newest and not ring.leased then
    ring.len = ring.len - 1
    ring_push(ring, time, ring.total + units, lease)
  else
    ring_insert(ring, time, units, lease)
  end
end

-- An edit that changes nothing but the time: what every edit starts from.
local function edit_of(at, back)
  return { at = at, back = back, cut_index = 0, cut_units = 0, drop = 0, base = 0, add_time = 0, add_units = 0 }
end

-- Carries out an edit under a limit of `limit` units.
local function ring_apply(ring, edit, limit, lease)
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
  elseif ring.ahead > RING_FAR or ring.total > RING_FAR or (ring.ahead > 0 and ring_get(ring, 0) == 0) then
    -- The last: its clock was set back so far that its first run counts as of the epoch. By its own clock that is older.
    ring_rebuild(ring, ring.total_bits, ring.capacity)
  end
  if edit.add_units > 0 then
    ring_add(ring, edit.add_time, edit.add_units, limit, lease)
  end
end

-- What must be written: the whole string if there is a new one, or else where to write which bytes.
function ring_writes(ring)
  local head = struct_pack(
    RING,
    ring.time_bits,
    ring.total_bits,
    ring.leased and 1 or 0,
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
    return head .. ring_body(ring), nil
  end
  local places, writes = {}, { 0, head }
  for place in pairs(ring.slots) do
    places[#places + 1] = place
  end
  table_sort(places)
  local from = 1
  while from <= #places do
    local to, pieces = from, { ring.slots[places[from]] }
    while places[to + 1] == places[to] + 1 do
      to = to + 1
      pieces[#pieces + 1] = ring.slots[places[to]]
    end
    writes[#writes + 1] = RING_HEAD + places[from] * ring.stride
    writes[#writes + 1] = table_concat(pieces)
    from = to + 1
  end
  return nil, writes
end
