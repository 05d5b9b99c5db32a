//! The front end for the Redis protocol: `CL.THROTTLE` for any Redis client, and `TOLLGATE.CHECK`.

mod check;
mod connection;
pub mod decode;
mod execute;
mod reply_writer;
mod session;
mod settings;
mod throttle;

pub use settings::RespSettings;

use super::gate::Gate;
use super::net::accept::accept;
use super::net::listen::Listener;
use super::net::memory_budget::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all connections share.
struct RespService {
    gate: Arc<Gate>,
    settings: RespSettings,
    budget: MemoryBudget,
    /// Connections since the start: each has a number.
    connections: AtomicU64,
}

/// Answers commands on `listener` until `shutdown` comes to an end, and then drains: it accepts no more connections, answers
/// what has arrived, and after the time to drain cuts off the rest.
///
/// Trouble with a connection ends that connection, and trouble with accepting is waited out.
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

/// The most bytes that all connections together leave with the server, beyond what each has free.
const BUDGET_BYTES: usize = 8 << 20;
/// What every connection may hold without asking: more than a pipeline of usual commands and its replies.
const FREE_BYTES: usize = 4 << 10;
