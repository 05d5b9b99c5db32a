//! Everything the admin API is started with.

pub use crate::config::{AdminSettings, AdminToken, AnonymousAccess, ExternalUrl, SubjectDisplay};

use crate::alerts::Alerts;
use crate::server::net::listen::Address;
use crate::server::net::tls::Tls;
use std::sync::Arc;
use std::time::Duration;

/// Everything the front end needs besides the settings of the operator.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The settings.
    pub settings: AdminSettings,
    /// The address it listens on.
    pub address: Address,
    /// Certificates; none: without TLS.
    pub tls: Option<Arc<Tls>>,
    /// The longest time for requests in flight to finish when the server stops.
    pub drain: Duration,
    /// Alerts.
    pub alerts: Alerts,
    /// The runtime of the decisions: explanations and cleared counters run there.
    pub decisions: tokio::runtime::Handle,
}
