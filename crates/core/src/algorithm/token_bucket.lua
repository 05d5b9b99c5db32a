-- Twin of token_bucket.rs: holds `burst` tokens, refills continuously, takes a cost if that many are there.
local function token_bucket()
  return {
    limit = function(parts, span, burst)
      return debt_limit(parts, span, burst, UNIT_DEBT)
    end,
    is_state = debt_is_state,
    decide = debt_decide,
    refund = debt_refund,
    undo = debt_undo,
    fresh_at = debt_fresh_at,
  }
end
