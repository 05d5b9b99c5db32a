-- Twin of cell.rs: GCRA in whole nanoseconds, as CL.THROTTLE speaks it.
local function cell()
  return {
    limit = function(parts, span, burst)
      return debt_limit(parts, span, burst, NANO_DEBT)
    end,
    is_state = debt_is_state,
    decide = debt_decide,
    refund = debt_refund,
    undo = debt_undo,
    fresh_at = debt_fresh_at,
  }
end
