-- Leads a key through a life and tells of each step all that came of it, as one line and the changes.
-- ARGV: the number of the algorithm; per step the 4 numbers of the limit, now, slack, the act and 6 numbers of it.
ready()
local number = tonumber(ARGV[1])
local algorithm = twin(number)
-- Large states are opened, changed by edits and written in parts.
local is_large = algorithm.open ~= nil

-- What the key holds: a string, as a server would.
local held
local function open()
  if not held then
    return nil
  end
  local opened = algorithm.open(string.sub(held, 1, algorithm.open_bytes), function(offset, length)
    return string.sub(held, offset + 1, offset + length)
  end)
  assert(opened, 'a state that was written can be read')
  return opened
end

local function write(limit, change, lease)
  if not is_large then
    held = change
    return
  end
  local whole, writes = algorithm.writes(algorithm.keep(limit, open(), change, lease))
  if whole then
    held = whole
    return
  end
  for position = 1, #writes, 2 do
    local offset, bytes = writes[position], writes[position + 1]
    held = string.sub(held, 1, offset) .. bytes .. string.sub(held, offset + #bytes + 1)
  end
end

local function encode_change(change)
  if not change then
    return '-'
  end
  if not is_large then
    return change
  end
  local numbers = {}
  for index, name in ipairs(algorithm.numbers) do
    numbers[index] = string.format('%.0f', change[name])
  end
  return table.concat(numbers, ' ')
end

local answers = {}
local function report(line, change, repair, limit)
  local whole = ''
  if held and #answers / 4 % 16 == 0 then
    assert(is_large or algorithm.is_state(limit, held), 'a state that was written is one')
    whole = string.format('%.0f ', algorithm.fresh_at(limit, is_large and open() or held)) .. held
  end
  answers[#answers + 1] = line
  answers[#answers + 1] = encode_change(change)
  answers[#answers + 1] = encode_change(repair)
  answers[#answers + 1] = whole
end

local numbers = {}
for word in string.gmatch(ARGV[2], '%d+') do
  numbers[#numbers + 1] = tonumber(word)
end
for at = 1, #numbers, 13 do
  local n1, n2, n3, n4, now, slack, act, a, b, c, d, e, f = unpack(numbers, at, at + 12)
  local limit = algorithm.limit(n1, n2, n3, n4)
  local lease = struct.pack('<I4I4', e, f)
  local state = held
  if is_large then
    state = open()
  end
  if act == 1 then
    local allowed, remaining, reset, wait, next, repair, fresh_at, mark_at, mark_frac, taken_at =
      algorithm.decide(limit, state, a, now, slack)
    local kept = b == 2 or (b == 1 and allowed)
    local change = kept and next or repair
    if change then
      write(limit, change, lease)
    end
    local line = string.format(
      '%s %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
      allowed and 'allow' or 'deny',
      remaining,
      reset,
      wait,
      fresh_at,
      mark_at,
      mark_frac,
      taken_at
    )
    report(line, next, repair, limit)
  else
    local change
    if state and act == 2 then
      change = algorithm.refund(limit, state, a, now, slack)
    elseif state and act == 3 then
      change = algorithm.undo(limit, state, a, b, c, d, lease, now, slack)
    elseif state and act == 4 then
      change = algorithm.release(limit, state, lease, now, slack)
    elseif state and act == 5 then
      change = algorithm.renew(limit, state, lease, now, slack)
    end
    if change then
      write(limit, change, lease)
    end
    report('gives', change, nil, limit)
  end
end
return answers
