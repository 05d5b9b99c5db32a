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
use std::pin::pin;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Serves calls on `listener` until `shutdown` completes, and then drains: health reports `NOT_SERVING`, connections get
/// GOAWAY, calls in flight are answered, and the rest is dropped after the drain time.
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
