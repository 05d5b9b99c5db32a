-- Twin of gcra.rs: the theoretical arrival time of the next request; early by more than the burst is denied.
local function gcra()
  return {
    limit = function(parts, span, burst)
      return debt_limit(parts, span, burst, TIME_DEBT)
    end,
    is_state = debt_is_state,
    decide = debt_decide,
    refund = debt_refund,
    undo = debt_undo,
    fresh_at = debt_fresh_at,
  }
end
