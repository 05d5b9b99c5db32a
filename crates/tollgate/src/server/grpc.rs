//! The gRPC front end: the rls service, health, reflection.

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
use super::rls;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Serves calls on `listener` until `shutdown` completes, and then drains: health reports `NOT_SERVING`, connections get
/// GOAWAY, calls in flight are answered, and the rest is dropped after the drain time.
pub async fn serve(listener: Listener, gate: Arc<Gate>, settings: GrpcSettings, shutdown: impl Future<Output = ()>) {
    let health = HealthReporter::new();
    let is_serving = is_healthy(&gate);
    report_health(&health, is_serving).await;
    let service = Arc::new(GrpcService::new(Arc::clone(&gate), settings, &health));
    let stopped = async {
        tokio::select! {
            () = shutdown => {}
            () = follow_health(&gate, &health, is_serving) => {}
        }
        report_health(&health, false).await;
    };
    accept(listener, &gate, service, stopped).await;
}

/// True if health checks should send requests here, while the server runs.
fn is_healthy(gate: &Gate) -> bool {
    !gate.is_awaiting_rules() && !gate.is_missing_store()
}

/// Reports every change of the health, without end.
async fn follow_health(gate: &Gate, health: &HealthReporter, mut is_serving: bool) {
    loop {
        tokio::select! {
            () = gate.wait_for_rules(), if gate.is_awaiting_rules() => {}
            () = sleep(HEALTH_INTERVAL) => {}
        }
        if is_healthy(gate) != is_serving {
            is_serving = !is_serving;
            report_health(health, is_serving).await;
        }
    }
}

/// The interval at which the health is read. Rules that were missing are noticed at once.
const HEALTH_INTERVAL: Duration = Duration::from_millis(250);

/// Sets the health of all service names.
async fn report_health(health: &HealthReporter, is_serving: bool) {
    let status = if is_serving {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    for name in rls::HEALTH_NAMES {
        health.set_service_status(name, status).await;
    }
}
