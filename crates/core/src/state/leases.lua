-- Twin of leases.rs: the leases of one key, what the concurrency limit keeps.
--
-- Stored as one string: a header of numbers, then the slots, each with the hash bucket of its number. Slots are read
-- through `read(offset, length)` and what a step changes is collected until `leases_writes`, so that no decision moves
-- the whole of it. Slots are numbered from 1; 0 is none.
local LEASES, LEASES_HEADER = '<BI7I2I2I2I2I2I2', 20
local SLOT, SLOT_BYTES = '<I7I2c8I2I2I2I2', 25
local LEASES_FORMAT = 1
local NO_LEASE = string.rep('\0', 8)

local function leases_new(at)
  return { at = at, used = 0, len = 0, head = 0, tail = 0, free = 0, count = 0, slots = {}, changed = {}, whole = true }
end

-- The table that begins with these bytes: the header and as many slots as were read with it. Nothing if none does.
local function leases_open(bytes, read)
  if #bytes < LEASES_HEADER then
    return nil
  end
  local format, at, used, len, head, tail, free, count = struct_unpack(LEASES, bytes)
  if format ~= LEASES_FORMAT or at > LAST_NOW or len > count or head > count or tail > count or free > count then
    return nil
  end
  return {
    at = at,
    used = used,
    len = len,
    head = head,
    tail = tail,
    free = free,
    count = count,
    slots = {},
    changed = {},
    prefix = bytes,
    read = read,
  }
end

-- A slot as a table; nothing for 0. What is missing of damaged bytes counts as zeros.
local function leases_slot(leases, number)
  if number == 0 or number > leases.count then
    return nil
  end
  local slot = leases.slots[number]
  if slot then
    return slot
  end
  local offset = LEASES_HEADER + (number - 1) * SLOT_BYTES
  local bytes, from = leases.prefix, offset + 1
  if #bytes < offset + SLOT_BYTES then
    bytes, from = leases.read(offset, SLOT_BYTES), 1
    if #bytes < SLOT_BYTES then
      bytes = bytes .. string.rep('\0', SLOT_BYTES - #bytes)
    end
  end
  slot = {}
  slot.ends, slot.units, slot.id, slot.prev, slot.next, slot.chain, slot.bucket = struct_unpack(SLOT, bytes, from)
  leases.slots[number] = slot
  return slot
end

-- The same, to be written back.
local function leases_change(leases, number)
  local slot = leases_slot(leases, number)
  if slot then
    leases.changed[number] = true
  end
  return slot
end

-- Reads all slots at once, before each of them is needed.
local function leases_fetch(leases)
  if leases.read then
    leases.prefix = leases.read(0, LEASES_HEADER + leases.count * SLOT_BYTES)
  end
end

-- The bucket of a lease among `count`, by linear hashing; from 1, as the slot that holds it.
local function leases_bucket(id, count)
  local half = 1
  while half * 2 <= count do
    half = half * 2
  end
  local bucket = struct_unpack('<I2', id) % (half * 2)
  return (bucket < count and bucket or bucket - half) + 1
end

-- How many leases have ended at `now` for a clock that was set back by `back`, and their units.
local function leases_expired(leases, now, back)
  local tail = leases_slot(leases, leases.tail)
  if not tail or tail.ends - back <= now then
    return leases.len, leases.used
  end
  local len, units = 0, 0
  local slot = leases_slot(leases, leases.head)
  while slot and slot.ends - back <= now and len < leases.len do
    len, units = len + 1, units + slot.units
    if len == 16 then
      leases_fetch(leases)
    end
    slot = leases_slot(leases, slot.next)
  end
  return len, units
end

-- The slot and the units of a lease that has not ended. Of several with one id the oldest.
local function leases_find(leases, id, now, back)
  if leases.count == 0 then
    return nil
  end
  local number = leases_slot(leases, leases_bucket(id, leases.count)).bucket
  local found, units
  for _ = 1, leases.count do
    local slot = leases_slot(leases, number)
    if not slot then
      break
    end
    if slot.id == id and slot.ends - back > now then
      found, units = number, slot.units
    end
    number = slot.chain
  end
  return found, units
end

-- Sets what follows a slot in the list, or what it follows; beyond the ends of the list that is head and tail.
local function leases_link(leases, number, to, link)
  local slot = leases_change(leases, number)
  if slot then
    slot[link] = to
  elseif link == 'next' then
    leases.head = to
  else
    leases.tail = to
  end
end

-- An empty table has no slots.
local function leases_clear(leases)
  leases.used, leases.len, leases.head, leases.tail, leases.free, leases.count = 0, 0, 0, 0, 0, 0
  leases.slots, leases.changed, leases.whole, leases.read, leases.prefix = {}, {}, true, nil, ''
end

-- Takes a lease out; its slot is free then.
local function leases_remove(leases, number)
  local removed = leases_slot(leases, number)
  if not removed then
    return
  end
  if leases.len == 1 then
    return leases_clear(leases)
  end
  leases_link(leases, removed.prev, removed.next, 'next')
  leases_link(leases, removed.next, removed.prev, 'prev')
  local bucket = leases_bucket(removed.id, leases.count)
  local at = leases_slot(leases, bucket).bucket
  if at == number then
    leases_change(leases, bucket).bucket = removed.chain
  else
    for _ = 1, leases.count do
      local slot = leases_slot(leases, at)
      if not slot then
        break
      end
      if slot.chain == number then
        leases_change(leases, at).chain = removed.chain
        break
      end
      at = slot.chain
    end
  end
  leases.len, leases.used = leases.len - 1, leases.used - removed.units
  local slot = leases_change(leases, number)
  slot.ends, slot.units, slot.id, slot.prev, slot.next, slot.chain = 0, 0, NO_LEASE, 0, leases.free, 0
  leases.free = number
end

-- Adds a bucket, and moves the leases to it that belong there. Both chains keep their order.
local function leases_split(leases)
  local new = leases.count - 1
  if new == 0 then
    return
  end
  local half = 1
  while half * 2 <= new do
    half = half * 2
  end
  local from = new - half + 1
  local number = leases_slot(leases, from).bucket
  if number == 0 then
    return
  end
  local stays, moves = nil, nil
  local first_stays, first_moves = 0, 0
  for _ = 1, leases.count do
    local slot = leases_change(leases, number)
    if not slot then
      break
    end
    local after = slot.chain
    if struct_unpack('<I2', slot.id) % (half * 2) == new then
      if moves then
        moves.chain = number
      else
        first_moves = number
      end
      moves = slot
    else
      if stays then
        stays.chain = number
      else
        first_stays = number
      end
      stays = slot
    end
    number = after
  end
  if stays then
    stays.chain = 0
  end
  if moves then
    moves.chain = 0
  end
  leases_change(leases, from).bucket = first_stays
  leases_change(leases, new + 1).bucket = first_moves
end

-- A free slot, or a new one.
local function leases_allocate(leases)
  local slot = leases_slot(leases, leases.free)
  local number = leases.free
  if slot then
    leases.free = slot.next
    return number
  end
  number = leases.count + 1
  leases.count = number
  leases.slots[number] = { ends = 0, units = 0, id = NO_LEASE, prev = 0, next = 0, chain = 0, bucket = 0 }
  leases.changed[number] = true
  leases_split(leases)
  return number
end

local function leases_add(leases, ends, units, id)
  local number = leases_allocate(leases)
  -- Leases end in the order they were taken, unless the limit's lease time was shortened.
  local prev = leases.tail
  local before = leases_slot(leases, prev)
  while before and before.ends > ends do
    prev = before.prev
    before = leases_slot(leases, prev)
  end
  local after = leases.head
  if before then
    after = before.next
  end
  local bucket = leases_change(leases, leases_bucket(id, leases.count))
  local slot = leases_change(leases, number)
  slot.chain, bucket.bucket = bucket.bucket, number
  slot.ends, slot.units, slot.id, slot.prev, slot.next = ends, units, id, prev, after
  leases_link(leases, prev, number, 'next')
  leases_link(leases, after, number, 'prev')
  leases.len, leases.used = leases.len + 1, leases.used + units
end

-- Carries out an edit.
local function leases_apply(leases, edit, id)
  leases.at = edit.at
  if edit.back > 0 then
    leases_fetch(leases)
    for number = 1, leases.count do
      local slot = leases_change(leases, number)
      slot.ends = slot.ends > edit.back and slot.ends - edit.back or 0
    end
  end
  leases_remove(leases, edit.release)
  if edit.drop >= leases.len then
    leases_clear(leases)
  else
    if edit.drop > 16 then
      leases_fetch(leases)
    end
    for _ = 1, edit.drop do
      leases_remove(leases, leases.head)
    end
  end
  if edit.trim > 0 then
    local slot = leases_change(leases, leases.head)
    if slot then
      local trim = edit.trim < slot.units and edit.trim or slot.units - 1
      slot.units, leases.used = slot.units - trim, leases.used - trim
    end
  end
  if edit.add_units > 0 then
    leases_add(leases, edit.add_end, edit.add_units, id)
  end
end

-- What must be written: the whole string if it is a new one, or else where to write which bytes.
local function leases_writes(leases)
  local header = struct_pack(
    LEASES,
    LEASES_FORMAT,
    leases.at,
    leases.used,
    leases.len,
    leases.head,
    leases.tail,
    leases.free,
    leases.count
  )
  local numbers = {}
  for number in pairs(leases.changed) do
    numbers[#numbers + 1] = number
  end
  table.sort(numbers)
  local function bytes(number)
    local slot = leases.slots[number]
    return struct_pack(SLOT, slot.ends, slot.units, slot.id, slot.prev, slot.next, slot.chain, slot.bucket)
  end
  local writes, from = { 0, header }, 1
  while from <= #numbers do
    local to, pieces = from, { bytes(numbers[from]) }
    while numbers[to + 1] == numbers[to] + 1 do
      to = to + 1
      pieces[#pieces + 1] = bytes(numbers[to])
    end
    writes[#writes + 1] = LEASES_HEADER + (numbers[from] - 1) * SLOT_BYTES
    writes[#writes + 1] = table.concat(pieces)
    from = to + 1
  end
  if leases.whole then
    return header .. (writes[4] or ''), nil
  end
  return nil, writes
end
