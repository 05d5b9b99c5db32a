-- The one script of the shared store, and the only file that calls the server.
--
-- KEYS     the counters, each once, all of one slot
-- ARGV[1]  packed numbers: the operation; the caller's time, or 0 for the server's, and its largest accepted difference from
--          the server's; the slack; the latest server time at which the call may start (0: any); the number of terms, and
--          for each its policy, the number of its algorithm and the four numbers of the limit;
--          then the requests: the number of charges of each, and for each charge key, term and cost.
--          Other operations have, for each: key, term, cost and mark.
--          Keys and terms are named by their index, from 1.
-- ARGV[2]  8 bytes for each request: its lease of concurrency limits ('' if none has one)
-- reply    the server's time, the time decided at, and 1 if the deadline had passed and nothing was done; then for each
--          charge the fields of `add_reply`, and for each cleared counter one byte
--
-- A request's charges are all kept or none, as core's settle.rs has it. All keys are read and decided first; changes are
-- written last, each key with its TTL.

-- Operations.
local SETTLE, PEEK, UNDO, REFUND, RELEASE, RENEW, FORGET = 1, 2, 3, 4, 5, 6, 7
-- Policies. ENFORCE is 1.
local SHADOW, COUNT = 2, 3
-- Flags of a charge: its limit allows it, it was kept, its request is allowed, the state of its key follows; or its key
-- holds a foreign value, and was not changed; or its numbers or its state need the larger form of a reply.
local ALLOWED, KEPT, REQUEST_ALLOWED, HAS_STATE, FOREIGN, LARGE = 1, 2, 4, 8, 16, 32
-- The largest number that four bytes hold.
local FOUR_BYTES = 4294967295

local function settle(KEYS, ARGV)
  ready()
  local call = redis.call
  local args, leases = cmsgpack.unpack(ARGV[1]), ARGV[2]
  local op, slack = args[1], args[4]
  local time = call('TIME')
  local server_now = time[1] * 1000000 + time[2]
  local now = server_now
  if args[2] > 0 and args[2] - now <= args[3] and now - args[2] <= args[3] then
    now = args[2]
  end
  if now > LAST_NOW then
    now = LAST_NOW
  end
  if args[5] > 0 and server_now > args[5] then
    return struct_pack('<I7I7B', server_now, now, 1)
  end
  local reply, reply_count = { struct_pack('<I7I7B', server_now, now, 0) }, 1

  if op == FORGET then
    for index = 1, #KEYS do
      reply[index + 1] = call('UNLINK', KEYS[index]) == 1 and '\1' or '\0'
    end
    return table.concat(reply)
  end

  local terms, at, has_rings = {}, 7, false
  for term = 1, args[6] do
    local algorithm = twin(args[at + 1])
    local limit = algorithm.limit(args[at + 2], args[at + 3], args[at + 4], args[at + 5])
    limit.policy, limit.algorithm, limit.decide, limit.is_ring = args[at], algorithm, algorithm.decide, algorithm.keep
    has_rings = has_rings or limit.is_ring
    terms[term] = limit
    at = at + 6
  end

  -- Reads a key that may be of another type: the value is then a table. Any other error fails the call.
  local function read(command, name, ...)
    local value = redis.pcall(command, name, ...)
    if type(value) == 'table' and string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then
      return call(command, name, ...)
    end
    return value
  end

  -- The state of each key: a string, or a ring; false without a key. With rings, each is read when it is needed.
  local states, foreign, known = {}, {}, {}
  if not has_rings and #KEYS == 1 then
    states[1] = read('GET', KEYS[1])
    foreign[1] = type(states[1]) == 'table'
  elseif not has_rings then
    states = call('MGET', unpack(KEYS))
    -- There a key of another type looks like a missing one.
    local missing = {}
    for index = 1, #states do
      if not states[index] then
        missing[#missing + 1] = KEYS[index]
      end
    end
    if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
      for index = 1, #states do
        foreign[index] = not states[index] and call('EXISTS', KEYS[index]) == 1
      end
    end
  end

  -- Reads a key if it was not read yet. False if it holds a foreign value.
  local function load(key, limit)
    if known[key] then
      return not foreign[key]
    end
    known[key] = true
    local name = KEYS[key]
    if limit.is_ring then
      local bytes = read('GETRANGE', name, 0, limit.algorithm.open_bytes - 1)
      if type(bytes) ~= 'string' then
        foreign[key] = true
      elseif bytes ~= '' then
        states[key] = limit.algorithm.open(bytes, function(offset, length)
          return call('GETRANGE', name, offset, offset + length - 1)
        end)
        foreign[key] = not states[key]
      end
      return not foreign[key]
    end
    if has_rings then
      local value = read('GET', name)
      states[key] = value
      foreign[key] = type(value) == 'table'
    end
    local state = states[key]
    if state and (foreign[key] or not limit.algorithm.is_state(limit, state)) then
      foreign[key] = true
    end
    return not foreign[key]
  end

  -- Changes the state of a key. It is written at the end.
  local changed, fresh_in = {}, {}
  local function keep(key, limit, change, lasts, request)
    if limit.is_ring then
      change = limit.algorithm.keep(limit, states[key], change, string.sub(leases, request * 8 - 7, request * 8))
    end
    states[key], changed[key], fresh_in[key] = change, limit, lasts
  end

  -- Adds the reply of a charge: flags, remaining, reset_after, wait, and its mark, for an undo. The larger form ends with
  -- the length of the state, which is `bytes` otherwise.
  local function add_reply(flags, remaining, reset, wait, mark_at, mark_frac, taken_at, state, bytes)
    local is_string = type(state) == 'string'
    if remaining > FOUR_BYTES or mark_frac > FOUR_BYTES or (is_string and #state ~= bytes) then
      flags = flags + LARGE + (is_string and HAS_STATE or 0)
      reply[reply_count + 1] = struct_pack(
        '<BI7I7i7I7I7I7B',
        flags,
        remaining,
        reset,
        wait,
        mark_at,
        mark_frac,
        taken_at,
        is_string and #state or 0
      )
      reply[reply_count + 2] = is_string and state or ''
      reply_count = reply_count + 2
    elseif is_string then
      reply[reply_count + 1] =
        struct_pack('<BI4I7i7I7I4I7', flags + HAS_STATE, remaining, reset, wait, mark_at, mark_frac, taken_at)
      reply[reply_count + 2] = state
      reply_count = reply_count + 2
    else
      reply_count = reply_count + 1
      reply[reply_count] = struct_pack('<BI4I7i7I7I4I7', flags, remaining, reset, wait, mark_at, mark_frac, taken_at)
    end
  end

  -- A request of several charges: all kept or none. Those of the same key add up.
  local function settle_several(request, count)
    local steps, request_allowed, taken = {}, true, {}
    for index = 1, count do
      local key, limit, cost = args[at], terms[args[at + 1]], args[at + 2]
      at = at + 3
      local step = { key = key, limit = limit, foreign = not load(key, limit) }
      if not step.foreign then
        local before = taken[key]
        if before then
          -- Of a cell a cost may be a string of bytes, more than any sum of numbers.
          cost = type(cost) == 'number' and type(before) == 'number' and cost + before or LARGEST
        end
        local _
        step.allowed, step.remaining, step.reset, step.wait, step.next, step.repair, _, step.mark_at, step.mark_frac, step.taken_at =
          limit.decide(limit, states[key], cost, now, slack)
        if step.allowed or limit.policy ~= SHADOW then
          taken[key] = cost
        end
        request_allowed = request_allowed and (step.allowed or limit.policy == SHADOW)
      end
      steps[index] = step
    end
    local last, last_kept = {}, {}
    for index = 1, count do
      local step = steps[index]
      if not step.foreign then
        local policy = step.limit.policy
        step.kept = policy == COUNT or (request_allowed and (step.allowed or policy ~= SHADOW))
        last[step.key] = index
        if step.kept then
          last_kept[step.key] = index
        end
        if step.allowed and not step.kept then
          local _
          _, step.remaining, step.reset = step.limit.decide(step.limit, states[step.key], 0, now, slack)
        elseif step.kept and not step.allowed then
          step.remaining = 0
        end
      end
    end
    -- A key is changed once: by its last kept charge, which includes those before it; otherwise, if the clock was set back,
    -- by the repair of the last one.
    for index = 1, count do
      local step = steps[index]
      local change
      if last_kept[step.key] == index then
        change = step.next or step.repair
      elseif not last_kept[step.key] and last[step.key] == index then
        change = step.repair
      end
      if change and op == SETTLE then
        keep(step.key, step.limit, change, nil, request)
      end
    end
    for index = 1, count do
      local step = steps[index]
      local flags = request_allowed and REQUEST_ALLOWED or 0
      if step.foreign then
        add_reply(flags + FOREIGN, 0, 0, 0, 0, 0, 0)
      else
        flags = flags + (step.allowed and ALLOWED or 0) + (step.kept and KEPT or 0)
        add_reply(
          flags,
          step.remaining,
          step.reset,
          step.wait,
          step.mark_at,
          step.mark_frac,
          step.taken_at,
          states[step.key],
          step.limit.bytes
        )
      end
    end
  end

  -- Undo, refund, release or renewal: KEPT if there was anything to return, with the standing after it.
  local function modify(request)
    local key, limit, cost = args[at], terms[args[at + 1]], args[at + 2]
    local mark_at, mark_frac, taken_at = args[at + 3], args[at + 4], args[at + 5]
    at = at + 6
    if not load(key, limit) then
      return add_reply(FOREIGN, 0, 0, 0, 0, 0, 0)
    end
    local state, algorithm, change = states[key], limit.algorithm, nil
    local lease = string.sub(leases, request * 8 - 7, request * 8)
    if not state then
      change = nil
    elseif op == UNDO then
      change = algorithm.undo(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
    elseif op == REFUND then
      change = algorithm.refund(limit, state, cost, now, slack)
    elseif op == RELEASE and algorithm.release then
      change = algorithm.release(limit, state, lease, now, slack)
    elseif op == RENEW and algorithm.renew then
      change = algorithm.renew(limit, state, lease, now, slack)
    end
    if change then
      keep(key, limit, change, nil, request)
    end
    local _, remaining, reset, wait, _, _, _, mark, frac, taken = limit.decide(limit, states[key], 0, now, slack)
    add_reply(change and KEPT + ALLOWED or ALLOWED, remaining, reset, wait, mark, frac, taken, states[key], limit.bytes)
  end

  local request, size = 0, #args
  while at <= size do
    request = request + 1
    if op > PEEK then
      modify(request)
    elseif args[at] ~= 1 then
      at = at + 1
      settle_several(request, args[at - 1])
    else
      -- A request of one charge, the usual case, without a function call that it does not need.
      local key, limit, cost = args[at + 1], terms[args[at + 2]], args[at + 3]
      at = at + 4
      local state = states[key]
      if has_rings then
        load(key, limit)
        state = states[key]
      elseif state and not foreign[key] then
        foreign[key] = not limit.algorithm.is_state(limit, state)
      end
      if foreign[key] then
        add_reply(FOREIGN + REQUEST_ALLOWED, 0, 0, 0, 0, 0, 0)
      else
        local allowed, remaining, reset, wait, next, repair, fresh_at, mark_at, mark_frac, taken_at =
          limit.decide(limit, state, cost, now, slack)
        local flags, change, lasts = ALLOWED + KEPT + REQUEST_ALLOWED, next or repair, fresh_at - taken_at
        if not allowed then
          flags, change = limit.policy == SHADOW and REQUEST_ALLOWED or 0, repair
          if limit.policy == COUNT then
            flags, change, remaining, lasts = KEPT, next or repair, 0, nil
          end
        end
        if change and op == SETTLE then
          if limit.is_ring then
            keep(key, limit, change, lasts, request)
          else
            states[key], changed[key], fresh_in[key] = change, limit, lasts
            state = change
          end
        end
        if state and not has_rings and remaining <= FOUR_BYTES and mark_frac <= FOUR_BYTES and #state == limit.bytes then
          reply[reply_count + 1] =
            struct_pack('<BI4I7i7I7I4I7', flags + HAS_STATE, remaining, reset, wait, mark_at, mark_frac, taken_at)
          reply[reply_count + 2] = state
          reply_count = reply_count + 2
        else
          add_reply(flags, remaining, reset, wait, mark_at, mark_frac, taken_at, state, limit.bytes)
        end
      end
    end
  end

  -- TTLs double from a minute on: at least the time until the key is fresh, at most twice that and a minute. They are
  -- absolute times, so that the server does not compute them, and few, so that each is formatted once.
  local ends = {}
  for key = 1, #KEYS do
    local limit, name, state = changed[key], KEYS[key], states[key]
    if limit then
      local lasts = fresh_in[key]
      if not lasts then
        local at = limit.is_ring and state.at or now
        lasts = limit.algorithm.fresh_at(limit, state) - at
      end
      local ttl = 60000000
      while ttl < lasts do
        ttl = ttl * 2
      end
      local ending = ends[ttl]
      if not ending then
        local ms = server_now + ttl
        ending = string.format('%.0f', (ms - ms % 1000) / 1000 + 1)
        ends[ttl] = ending
      end
      local whole, writes = state, nil
      if limit.is_ring then
        whole, writes = limit.algorithm.writes(state)
      end
      if whole then
        call('SET', name, whole, 'PXAT', ending)
      else
        for write = 1, #writes, 2 do
          call('SETRANGE', name, writes[write], writes[write + 1])
        end
        call('PEXPIREAT', name, ending)
      end
    end
  end
  return table.concat(reply)
end
