-- Twin of token_bucket.rs: holds `burst` tokens, refills continuously, takes a cost if that many are there.
local function token_bucket()
  return debt_algorithm(UNIT_DEBT)
end
