//! The gRPC front end: Envoy's rate limit service, health, reflection.

mod coalesced_io;
mod connection;
mod inline_executor;
mod service;
mod settings;
mod unary;

pub use self::settings::GrpcSettings;

use self::service::GrpcService;
use super::gate::Gate;
use super::net::accept::accept;
use super::net::listen::Listener;
use std::pin::pin;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Answers calls on `listener` until `shutdown` comes to an end, and then drains: whoever watches its health hears that it
/// serves no more, connections get GOAWAY, calls in flight are answered, and after the time to drain the rest is cut off.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: GrpcSettings, shutdown: impl Future<Output = ()>) {
    let health = HealthReporter::new();
    let awaiting_rules = gate.is_awaiting_rules();
    report_health(&health, !awaiting_rules).await;
    let service = Arc::new(GrpcService::new(Arc::clone(&gate), settings, &health));
    let stopped = async {
        let mut shutdown = pin!(shutdown);
        if awaiting_rules {
            tokio::select! {
                () = &mut shutdown => return report_health(&health, false).await,
                () = gate.wait_for_rules() => report_health(&health, true).await,
            }
        }
        shutdown.await;
        report_health(&health, false).await;
    };
    accept(listener, &gate, service, stopped).await;
}

/// Tells who asks for its health whether it serves, under all its names.
async fn report_health(health: &HealthReporter, is_serving: bool) {
    let status = if is_serving {
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
