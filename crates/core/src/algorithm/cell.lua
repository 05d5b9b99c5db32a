-- Twin of cell.rs: GCRA in whole nanoseconds, as CL.THROTTLE speaks it.
local function cell()
  return debt_algorithm(NANO_DEBT)
end
