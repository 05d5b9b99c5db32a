//! The HTTP front end: the check API, health, metrics.

mod answer;
mod auth;
mod connection;
mod explain;
pub mod headers;
mod json;
mod problem;
mod ready;
pub mod request;
mod routes;
pub mod settings;
mod watch;

pub use headers::{Dialect, DialectError, Dialects};
pub use problem::Problem;
pub use routes::OPENAPI;
pub use settings::{Bounds, HttpSettings, RetryAfter, RetryAfterFormat};

use super::gate::{Gate, Phase};
use super::listen::Listener;
use connection::Stage;
use routes::Front;
use std::io;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch as channel};

/// Answers requests on `listener` until `shutdown` comes to an end, and then drains: it accepts no more connections,
/// answers what is in flight with `Connection: close` (GOAWAY on HTTP/2), and after the time to drain cuts off the rest.
///
/// At the cap of connections the next ones wait in the system's queue until one ends: a client that was let in is served,
/// and idle ones are cut off in time.
///
/// # Errors
/// None once it runs: trouble with a connection ends that connection, and trouble with accepting is waited out.
pub async fn serve(
    listener: Listener,
    gate: Arc<Gate>,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let all = u32::try_from(settings.bounds.connections.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(all as usize));
    let drain = settings.drain;
    let (stage, staged) = channel::channel(Stage::Running);
    let certificates = settings.tls.clone().map(|tls| tokio::spawn(tls.watch()));
    let front = Arc::new(Front::new(Arc::clone(&gate), settings));
    let accept = async {
        loop {
            // Room first: what cannot be served is not accepted.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let stream = listener.accept().await;
            tokio::spawn(connection::serve(stream, Arc::clone(&front), staged.clone(), permit));
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = accept => {}
    }
    drop(listener);
    gate.enter(Phase::Draining);
    if let Some(watching) = certificates {
        watching.abort();
    }
    stage.send_replace(Stage::Draining);
    if tokio::time::timeout(drain, room.acquire_many(all)).await.is_err() {
        tracing::warn!(?drain, "cutting off connections that did not end in time");
        stage.send_replace(Stage::Cut);
        let _ = room.acquire_many(all).await;
    }
    Ok(())
}
