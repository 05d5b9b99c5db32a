-- Twin of time.rs: times are whole microseconds below 2^53, which doubles hold exactly.

-- The last timestamp, and the last that `now` can be.
local LAST, LAST_NOW = 9007199254740991, 4503599627370495

-- The time to decide at for a key last written at `written_at`, and how far the key's own times must be set back.
local function reconcile(written_at, now, slack)
  local back = written_at - now
  if back > slack then
    return now, back
  end
  if back > 0 then
    return written_at, 0
  end
  return now, 0
end

-- Whether the clock was set back since a charge or since the last write of its key: its mark then names another time.
local function is_other_clock(written_at, taken_at, now, slack)
  return (written_at > taken_at and written_at or taken_at) - now > slack
end
