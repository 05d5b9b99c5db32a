-- Twin of leaky_bucket.rs: as a meter it polices; as a queue it tells what fits how long to wait, and takes nothing back.
local function leaky_bucket()
  local algorithm = debt_algorithm(UNIT_DEBT)
  algorithm.limit = function(parts, span, burst, shaping)
    local limit = debt_limit(parts, span, burst, UNIT_DEBT)
    limit.shaping = shaping == 1
    return limit
  end
  algorithm.decide = function(limit, state, cost, now, slack)
    local allowed, remaining, reset, wait, next, repair, fresh_at, start_us, start_frac, reconciled =
      debt_decide(limit, state, cost, now, slack)
    -- A peek takes no place in the queue and gets no delay.
    if limit.shaping and allowed and cost > 0 then
      wait = start_us - reconciled
      if start_frac > 0 then
        wait = wait + 1
      end
    end
    return allowed, remaining, reset, wait, next, repair, fresh_at, start_us, start_frac, reconciled
  end
  algorithm.refund = function(limit, state, cost, now, slack)
    return not limit.shaping and debt_refund(limit, state, cost, now, slack) or nil
  end
  algorithm.undo = function(limit, ...)
    return not limit.shaping and debt_undo(limit, ...) or nil
  end
  return algorithm
end
