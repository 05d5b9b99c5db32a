//! The algorithms in Lua, which a shared store runs next to its data.
//!
//! Each `.lua` file is the twin of the `.rs` file of the same name: pure functions with the same arguments in the same
//! order, exact in doubles below 2^53. A state is the bytes that [`State::write_packed`](crate::State::write_packed)
//! writes; a step is a list of values, described in `decision.lua`.

/// The twins, joined. Defines `ready()`, to be called first, and `twin(number)`, the functions of an algorithm by
/// [`Limit::number`](crate::Limit::number). Everything is local, nothing global.
///
/// A script runs from its first line at every call. So what several algorithms share is in one function, which runs
/// when one of them is needed.
pub const TWINS: &str = concat!(
    // While a library of functions is loaded, servers have no libraries of Lua's yet.
    "local struct_pack, struct_unpack, string_sub\n",
    "local function ready()\n",
    "  struct_pack, struct_unpack, string_sub = struct.pack, struct.unpack, string.sub\n",
    "end\n",
    include_str!("decision.lua"),
    include_str!("units/time.lua"),
    include_str!("units/muldiv.lua"),
    "local twins, makers = {}, {}\n",
    "local function debts()\n",
    include_str!("state/meter.lua"),
    include_str!("state/debt.lua"),
    include_str!("algorithm/token_bucket.lua"),
    include_str!("algorithm/gcra.lua"),
    include_str!("algorithm/leaky_bucket.lua"),
    include_str!("algorithm/cell.lua"),
    "makers[1], makers[2], makers[6], makers[8] = token_bucket, gcra, leaky_bucket, cell\nend\n",
    "local function windows()\n",
    include_str!("algorithm/fixed_window.lua"),
    include_str!("algorithm/sliding_counter.lua"),
    "makers[3], makers[4] = fixed_window, sliding_counter\nend\n",
    "local function logs()\n",
    include_str!("state/ring.lua"),
    include_str!("algorithm/sliding_log.lua"),
    "makers[5] = sliding_log\nend\n",
    "local function leases()\n",
    include_str!("state/leases.lua"),
    include_str!("algorithm/concurrency.lua"),
    "makers[7] = concurrency\nend\n",
    "local parts = { debts, debts, windows, windows, logs, debts, leases, debts }\n",
    "local function twin(number)\n",
    "  local found = twins[number]\n",
    "  if not found then\n",
    "    if not makers[number] then\n",
    "      parts[number]()\n",
    "    end\n",
    "    found = makers[number]()\n",
    "    twins[number] = found\n",
    "  end\n",
    "  return found\n",
    "end\n",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;

    #[test]
    fn every_algorithm_has_a_twin() {
        for name in Limit::ALGORITHMS {
            assert!(TWINS.contains(&format!("local function {name}()")), "{name}");
        }
    }
}
