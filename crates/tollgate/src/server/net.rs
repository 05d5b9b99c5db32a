//! Connections, for every front end alike: listeners, TLS, limits on connections and memory, idle timeouts, drain.

pub(super) mod accept;
pub(super) mod idle;
pub mod listen;
pub(super) mod memory_budget;
mod per_ip;
pub(super) mod sensor_io;
pub mod tls;
