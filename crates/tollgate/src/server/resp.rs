//! The front end for the Redis protocol: `CL.THROTTLE` for any Redis client, and `TOLLGATE.CHECK`.

mod answers;
mod check;
mod connection;
pub mod decode;
mod session;
mod settings;
mod throttle;
mod watch;
mod write;

pub use settings::RespSettings;

use super::accept::{ConnectionLimits, accept};
use super::gate::Gate;
use super::listen::Listener;
use super::room::MemoryBudget;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all connections share.
struct Front {
    gate: Arc<Gate>,
    settings: RespSettings,
    room: MemoryBudget,
    /// Connections since the start: each has a number.
    connections: AtomicU64,
}

/// Answers commands on `listener` until `shutdown` comes to an end, and then drains: it accepts no more connections, answers
/// what has arrived, and after the time to drain cuts off the rest.
///
/// Trouble with a connection ends that connection, and trouble with accepting is waited out.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: RespSettings, shutdown: impl Future<Output = ()>) {
    let terms = ConnectionLimits {
        connections: settings.connections,
        per_address: settings.connections_per_address,
        drain: settings.drain,
    };
    let front = Arc::new(Front {
        gate: Arc::clone(&gate),
        settings,
        room: MemoryBudget::new(ROOM, FREE),
        connections: AtomicU64::new(0),
    });
    let converse = |stream, stage| connection::serve(stream, Arc::clone(&front), stage);
    accept(listener, &gate, terms, shutdown, converse).await;
}

impl Front {
    fn number(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The most bytes that all connections together leave with the server, beyond what each has free.
const ROOM: usize = 8 << 20;
/// What every connection may hold without asking: more than a pipeline of usual commands and its replies.
const FREE: usize = 4 << 10;
