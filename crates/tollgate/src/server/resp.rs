//! The front end for the Redis protocol: `CL.THROTTLE` for any Redis client, and `TOLLGATE.CHECK`.

mod arity;
mod check;
mod connection;
pub mod decode;
mod execute;
mod reply_writer;
mod session;
mod settings;
mod throttle;
mod transaction;

pub use settings::RespSettings;

use super::gate::Gate;
use super::net::accept::accept;
use super::net::listen::Listener;
use super::net::memory_budget::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state that all connections share.
struct RespService {
    gate: Arc<Gate>,
    settings: RespSettings,
    budget: MemoryBudget,
    /// The id of the last connection.
    connections: AtomicU64,
}

/// Serves commands on `listener` until `shutdown` completes, and then drains: it accepts no more connections, answers the
/// commands that have arrived, and drops the rest after the drain time.
///
/// An error of one connection ends that connection only; an error of accepting is retried after a backoff.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: RespSettings, shutdown: impl Future<Output = ()>) {
    let service = Arc::new(RespService {
        gate: Arc::clone(&gate),
        settings,
        budget: MemoryBudget::new(BUDGET_BYTES, FREE_BYTES),
        connections: AtomicU64::new(0),
    });
    accept(listener, &gate, service, shutdown).await;
}

impl RespService {
    fn next_connection_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The most bytes that all connections may leave buffered, beyond what each has free.
const BUDGET_BYTES: usize = 8 << 20;
/// The free bytes of every connection: more than a usual pipeline and its replies.
const FREE_BYTES: usize = 4 << 10;
