//! The gRPC front end: Envoy's rate limit service, health, reflection.

mod connection;
mod gathered;
mod inline;
mod service;
mod settings;
mod unary;

pub use self::settings::GrpcSettings;

use self::service::Front;
use super::accept::{Terms, accept};
use super::gate::Gate;
use super::listen::Listener;
use std::pin::pin;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Answers calls on `listener` until `shutdown` comes to an end, and then drains: whoever watches its health hears that it
/// serves no more, connections get GOAWAY, calls in flight are answered, and after the time to drain the rest is cut off.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: GrpcSettings, shutdown: impl Future<Output = ()>) {
    let terms = Terms {
        connections: settings.connections,
        per_address: settings.connections_per_address,
        drain: settings.drain,
    };
    let health = HealthReporter::new();
    let lacks_rules = gate.is_awaiting_rules();
    tell(&health, !lacks_rules).await;
    let front = Arc::new(Front::new(Arc::clone(&gate), settings, &health));
    let stopped = async {
        let mut shutdown = pin!(shutdown);
        if lacks_rules {
            tokio::select! {
                () = &mut shutdown => return tell(&health, false).await,
                () = gate.wait_for_rules() => tell(&health, true).await,
            }
        }
        shutdown.await;
        tell(&health, false).await;
    };
    let converse = |stream, stage| connection::serve(stream, Arc::clone(&front), stage);
    accept(listener, &gate, terms, stopped, converse).await;
}

/// Tells who asks for its health whether it serves, under all its names.
async fn tell(health: &HealthReporter, serves: bool) {
    let status = if serves {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in ["", SERVICE_NAME, AS_RATELIMIT] {
        health.set_service_status(name, status).await;
    }
}

/// What health calls Envoy's service.
const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// What probes ask for that were written for envoyproxy/ratelimit.
const AS_RATELIMIT: &str = "ratelimit";
