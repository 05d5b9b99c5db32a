-- Twin of time.rs: moments are whole microseconds below 2^53, as doubles hold them exactly.

-- The last moment there is, and the last that `now` can be.
local LAST, LAST_NOW = 9007199254740991, 4503599627370495

-- What `now` is to a key last written at `written`, and by how much the key's own times must be set back.
local function heed(written, now, slack)
  local back = written - now
  if back > slack then
    return now, back
  end
  if back > 0 then
    return written, 0
  end
  return now, 0
end
