-- The one script of the shared store, and the only file that talks to the server.
--
-- KEYS     the counters, each once, all of one slot
-- ARGV[1]  packed numbers: the mode; the caller's time, or 0 for the server's, and how far it may be from the server's;
--          the slack; the last moment of the server's time at which the call may still begin (0: any); how many terms
--          there are, and for each its policy, the number of its algorithm and the four numbers of the limit;
--          then the requests: how many charges each has, and for each charge key, term and cost.
--          In other modes, for each thing to do: key, term, cost, and where the charge stands.
--          Keys and terms are named by their place, from 1.
-- ARGV[2]  8 bytes for each request: the lease it holds of concurrency limits ('' if none has one)
-- answer   the server's time, the time decided at, and whether the call came too late to do anything; then for each
--          charge what `tell` says, and in other modes what is said there
--
-- A request's charges are all kept or none, as core's settle.rs has it. All is read and decided first; what has changed is
-- written last, each key with its time to live.

-- Modes.
local SETTLE, PEEK, UNDO, REFUND, RELEASE, RENEW, FORGET = 1, 2, 3, 4, 5, 6, 7
-- Policies. ENFORCE is 1.
local SHADOW, COUNT = 2, 3
-- What a charge came to, added up: it passes, it was kept, its request passes, what its key holds follows; or its key holds
-- what no limit wrote, and was left alone.
local PASSES, KEPT, REQUEST_PASSES, HELD, FOREIGN = 1, 2, 4, 8, 16

local function settle(KEYS, ARGV)
  ready()
  local call = redis.call
  local args, leases = cmsgpack.unpack(ARGV[1]), ARGV[2]
  local mode, slack = args[1], args[4]
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
  local answer, told = { struct_pack('<I7I7B', server_now, now, 0) }, 1

  if mode == FORGET then
    for place = 1, #KEYS do
      answer[place + 1] = call('UNLINK', KEYS[place]) == 1 and '\1' or '\0'
    end
    return table.concat(answer)
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

  -- Reads what may be of another type, which is then no string. Any other failure is the whole call's.
  local function read(command, name, ...)
    local reply = redis.pcall(command, name, ...)
    if type(reply) == 'table' and string.sub(reply.err, 1, 9) ~= 'WRONGTYPE' then
      return call(command, name, ...)
    end
    return reply
  end

  -- What each key holds: a state as a string, or a ring; false is nothing. Beside rings each is read when it is asked for.
  local held, foreign, known = {}, {}, {}
  if not has_rings and #KEYS == 1 then
    held[1] = read('GET', KEYS[1])
    foreign[1] = type(held[1]) == 'table'
  elseif not has_rings then
    held = call('MGET', unpack(KEYS))
    -- A key of another type looks like a missing one there.
    local missing = {}
    for place = 1, #held do
      if not held[place] then
        missing[#missing + 1] = KEYS[place]
      end
    end
    if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
      for place = 1, #held do
        foreign[place] = not held[place] and call('EXISTS', KEYS[place]) == 1
      end
    end
  end

  -- Reads a key if it is not known yet. False if it holds what no limit wrote.
  local function look(key, limit)
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
        held[key] = limit.algorithm.open(bytes, function(offset, length)
          return call('GETRANGE', name, offset, offset + length - 1)
        end)
        foreign[key] = not held[key]
      end
      return not foreign[key]
    end
    if has_rings then
      local value = read('GET', name)
      held[key] = value
      foreign[key] = type(value) == 'table'
    end
    local state = held[key]
    if state and (foreign[key] or not limit.algorithm.is_state(limit, state)) then
      foreign[key] = true
    end
    return not foreign[key]
  end

  -- Changes what a key holds, here. It is written at the end.
  local changed, fresh_in = {}, {}
  local function keep(key, limit, change, lasts, request)
    if limit.is_ring then
      change = limit.algorithm.keep(limit, held[key], change, string.sub(leases, request * 8 - 7, request * 8))
    end
    held[key], changed[key], fresh_in[key] = change, limit, lasts
  end

  -- Says what a charge came to: flags, remaining, reset_after, wait, and where it stands, for taking it back.
  local function tell(flags, remaining, reset, wait, mark_at, mark_frac, taken_at, state)
    if type(state) == 'string' then
      answer[told + 1] =
        struct_pack('<BI4I7i7I7I4I7', flags + HELD, remaining, reset, wait, mark_at, mark_frac, taken_at)
      answer[told + 2] = state
      told = told + 2
    else
      told = told + 1
      answer[told] = struct_pack('<BI4I7i7I7I4I7', flags, remaining, reset, wait, mark_at, mark_frac, taken_at)
    end
  end

  -- A request of several charges: all kept or none. Those of the same key add up.
  local function settle_several(request, count)
    local steps, passes, taken = {}, true, {}
    for index = 1, count do
      local key, limit, cost = args[at], terms[args[at + 1]], args[at + 2]
      at = at + 3
      local step = { key = key, limit = limit, foreign = not look(key, limit) }
      if not step.foreign then
        cost = cost + (taken[key] or 0)
        local _
        step.allowed, step.remaining, step.reset, step.wait, step.next, step.repair, _, step.mark_at, step.mark_frac, step.taken_at =
          limit.decide(limit, held[key], cost, now, slack)
        if step.allowed or limit.policy ~= SHADOW then
          taken[key] = cost
        end
        passes = passes and (step.allowed or limit.policy == SHADOW)
      end
      steps[index] = step
    end
    local last, last_kept = {}, {}
    for index = 1, count do
      local step = steps[index]
      if not step.foreign then
        local policy = step.limit.policy
        step.kept = policy == COUNT or (passes and (step.allowed or policy ~= SHADOW))
        last[step.key] = index
        if step.kept then
          last_kept[step.key] = index
        end
        if step.allowed and not step.kept then
          local _
          _, step.remaining, step.reset = step.limit.decide(step.limit, held[step.key], 0, now, slack)
        elseif step.kept and not step.allowed then
          step.remaining = 0
        end
      end
    end
    -- A key is changed once: by its last kept charge, which holds the sum of those before it, or else by the last one, if
    -- the clock was set back.
    for index = 1, count do
      local step = steps[index]
      local change
      if last_kept[step.key] == index then
        change = step.next or step.repair
      elseif not last_kept[step.key] and last[step.key] == index then
        change = step.repair
      end
      if change and mode == SETTLE then
        keep(step.key, step.limit, change, nil, request)
      end
    end
    for index = 1, count do
      local step = steps[index]
      local flags = passes and REQUEST_PASSES or 0
      if step.foreign then
        tell(flags + FOREIGN, 0, 0, 0, 0, 0, 0)
      else
        flags = flags + (step.allowed and PASSES or 0) + (step.kept and KEPT or 0)
        tell(
          flags,
          step.remaining,
          step.reset,
          step.wait,
          step.mark_at,
          step.mark_frac,
          step.taken_at,
          held[step.key]
        )
      end
    end
  end

  -- Gives back: says 1 if there was anything to, and after a refund how the key then stands.
  local function give_back(request)
    local key, limit, cost = args[at], terms[args[at + 1]], args[at + 2]
    local mark_at, mark_frac, taken_at = args[at + 3], args[at + 4], args[at + 5]
    at = at + 6
    if not look(key, limit) then
      return tell(FOREIGN, 0, 0, 0, 0, 0, 0)
    end
    local state, algorithm, change = held[key], limit.algorithm, nil
    local lease = string.sub(leases, request * 8 - 7, request * 8)
    if not state then
      change = nil
    elseif mode == UNDO then
      change = algorithm.undo(limit, state, cost, mark_at, mark_frac, taken_at, lease, now, slack)
    elseif mode == REFUND then
      change = algorithm.refund(limit, state, cost, now, slack)
    elseif mode == RELEASE and algorithm.release then
      change = algorithm.release(limit, state, lease, now, slack)
    elseif mode == RENEW and algorithm.renew then
      change = algorithm.renew(limit, state, lease, now, slack)
    end
    if change then
      keep(key, limit, change, nil, request)
    end
    local _, remaining, reset, wait, _, _, _, mark, frac, taken = limit.decide(limit, held[key], 0, now, slack)
    tell(change and KEPT + PASSES or PASSES, remaining, reset, wait, mark, frac, taken, held[key])
  end

  local request, size = 0, #args
  while at <= size do
    request = request + 1
    if mode > PEEK then
      give_back(request)
    elseif args[at] ~= 1 then
      at = at + 1
      settle_several(request, args[at - 1])
    else
      -- A request of one charge, the usual one: nothing is called that need not be.
      local key, limit, cost = args[at + 1], terms[args[at + 2]], args[at + 3]
      at = at + 4
      local state = held[key]
      if has_rings then
        look(key, limit)
        state = held[key]
      elseif state and not foreign[key] then
        foreign[key] = not limit.algorithm.is_state(limit, state)
      end
      if foreign[key] then
        tell(FOREIGN + REQUEST_PASSES, 0, 0, 0, 0, 0, 0)
      else
        local allowed, remaining, reset, wait, next, repair, fresh_at, mark_at, mark_frac, taken_at =
          limit.decide(limit, state, cost, now, slack)
        local flags, change, lasts = PASSES + KEPT + REQUEST_PASSES, next or repair, fresh_at - taken_at
        if not allowed then
          flags, change = limit.policy == SHADOW and REQUEST_PASSES or 0, repair
          if limit.policy == COUNT then
            flags, change, remaining, lasts = KEPT, next or repair, 0, nil
          end
        end
        if change and mode == SETTLE then
          if limit.is_ring then
            keep(key, limit, change, lasts, request)
          else
            held[key], changed[key], fresh_in[key] = change, limit, lasts
            state = change
          end
        end
        if state and not has_rings then
          answer[told + 1] =
            struct_pack('<BI4I7i7I7I4I7', flags + HELD, remaining, reset, wait, mark_at, mark_frac, taken_at)
          answer[told + 2] = state
          told = told + 2
        else
          tell(flags, remaining, reset, wait, mark_at, mark_frac, taken_at, state)
        end
      end
    end
  end

  -- Times to live double from a minute on: at least the time until the key is as good as new, at most twice that and a
  -- minute. Moments, so that the server need not work them out; few, so that each is put into words once.
  local ends = {}
  for key = 1, #KEYS do
    local limit, name, state = changed[key], KEYS[key], held[key]
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
  return table.concat(answer)
end
