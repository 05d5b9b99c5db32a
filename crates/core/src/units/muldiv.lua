-- Twin of muldiv.rs: the quotient and the remainder of a * b / n, with nothing lost on the way.
--
-- All three are whole and below 2^53, n is not zero. A quotient of 2^53 or more is returned as 2^53: no limit that can be made
-- has one that is not capped below that anyway.
local function muldiv(a, b, n)
  -- As a float also where a Lua has integers, which would wrap around.
  local product = (a + 0.0) * b
  if product < 9007199254740992 then
    local rest = product % n
    return (product - rest) / n, rest
  end

  -- a = whole * n + part, and so a * b / n = whole * b + part * b / n.
  local part = a % n
  local quotient = (a - part) / n * (b + 0.0)
  -- Digits of b that leave space for the remainder, times the base, plus the product of a digit.
  local base, base_max = 1, 4503599627370496 / n
  while base * 2 <= base_max and base < 67108864 do
    base = base * 2
  end
  local digits, rest = {}, 0
  if base == 1 then
    base = 2
  end
  while b > 0 do
    local digit = b % base
    digits[#digits + 1] = digit
    b = (b - digit) / base
  end
  local sum = 0
  for index = #digits, 1, -1 do
    local digit = digits[index]
    if base_max >= 2 then
      rest = rest * base + part * digit
      local left = rest % n
      sum = sum * base + (rest - left) / n
      rest = left
    else
      -- Too wide for any digit: bit by bit, and never above 2 * n, which a double still holds if it is even.
      rest = rest * 2
      sum = sum * 2
      if rest >= n then
        rest = rest - n
        sum = sum + 1
      end
      if digit == 1 then
        if rest >= n - part then
          rest = rest - (n - part)
          sum = sum + 1
        else
          rest = rest + part
        end
      end
    end
    if sum > 9007199254740992 then
      sum = 9007199254740992
    end
  end
  quotient = quotient + sum
  if quotient > 9007199254740992 then
    quotient = 9007199254740992
  end
  return quotient, rest
end
