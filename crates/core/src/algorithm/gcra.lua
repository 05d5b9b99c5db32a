-- Twin of gcra.rs: the theoretical arrival time of the next request; early by more than the burst is denied.
local function gcra()
  return debt_algorithm(TIME_DEBT)
end
