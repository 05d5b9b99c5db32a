//! The admin API: rules, override rows, attributes, versions, access and the audit log over HTTP.
//!
//! It has a runtime of its own, so that nothing done here delays a decision. `admin/routes.rs` lists every operation with the right it
//! needs; `admin/service.rs` guards them; `admin/endpoints/` has them by subject. It knows the control plane and no SQL.

mod access;
mod audit_queue;
mod connection;
mod cursors;
mod endpoints;
mod offline;
mod openapi;
mod problem;
mod reply;
mod request;
mod routes;
mod service;
pub mod settings;
mod streams;

pub use offline::NewPrincipal;
pub use settings::{AdminOptions, AdminSettings, AdminToken, AnonymousAccess, ExternalUrl, SubjectDisplay};

use self::connection::AdminFrontEnd;
use self::endpoints::watch::publish::publish_events;
use self::service::AdminService;
use super::gate::Gate;
use super::net::accept::accept;
use super::net::listen::Listener;
use crate::control::Control;
use crate::control::model::Role;
use std::sync::Arc;

/// The admin API, before it serves.
pub struct Admin {
    service: Arc<AdminService>,
    gate: Arc<Gate>,
}

/// The codes for the printed links.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminLinks {
    /// The code of a viewer; none if the link does not work.
    pub view: Option<String>,
    /// The code of the first admin; none if a principal exists.
    pub setup: Option<String>,
}

impl Admin {
    /// The admin API of one control plane.
    pub fn new(gate: Arc<Gate>, control: Control, options: AdminOptions) -> Self {
        Self {
            service: Arc::new(AdminService::new(Arc::clone(&gate), control, options)),
            gate,
        }
    }

    /// The codes that the server prints at its start.
    pub async fn links(&self) -> AdminLinks {
        let access = &self.service.access;
        // A database that does not answer may have principals.
        let has_principal = match self.is_database_up() {
            true => access
                .has_principal(self.service.control.database())
                .await
                .unwrap_or(true),
            false => true,
        };
        let is_open = !has_principal;
        let is_auto = self.service.options.settings.anonymous == AnonymousAccess::Auto;
        AdminLinks {
            view: (is_open && is_auto).then(|| access.view_code.clone()),
            setup: (is_open && self.service.control.database().is_some()).then(|| access.setup_code.clone()),
        }
    }

    /// Checks that an address that other machines reach is protected: an admin exists, and clients use TLS. A database that does not
    /// answer may have one; it answers before any request is authenticated, and no code is printed.
    ///
    /// # Errors
    /// The reason why it must not be served, and the next step.
    pub async fn check_exposure(&self) -> Result<(), String> {
        let options = &self.service.options;
        if options.address.is_local() {
            return Ok(());
        }
        let address = &options.address;
        if !self.service.browser.is_secure() {
            return Err(format!(
                "other machines can reach the admin API on {address} without TLS; configure server.tls, or an https \
                 admin.external_url, or listen on 127.0.0.1"
            ));
        }
        let has_token = options.settings.tokens.iter().any(AdminToken::is_full_admin);
        let principals = match self.service.control.database() {
            None => Some(Vec::new()),
            Some(database) if self.is_database_up() => database.principals().await.ok(),
            Some(_) => None,
        };
        let has_admin = match &principals {
            Some(found) => found
                .iter()
                .any(|found| found.role == Role::Admin && found.domains.is_empty() && access::is_active(found)),
            None => {
                tracing::warn!(%address, "the control database does not answer; no login works until it does");
                true
            }
        };
        match has_token || has_admin {
            true => Ok(()),
            false => Err(format!(
                "other machines can reach the admin API on {address}, and it has no admin; add one with \
                 `tollgate user add --offline`, or a token in admin.tokens, or listen on 127.0.0.1"
            )),
        }
    }

    /// False while the database is known to be away: a server that starts does not wait for it once more.
    fn is_database_up(&self) -> bool {
        let status = self.service.control.status().database;
        status.up || status.kind == "none"
    }

    /// Serves requests on `listener` until `shutdown` completes, and then drains.
    pub async fn serve(&self, listener: Listener, shutdown: impl Future<Output = ()>) {
        let front_end = Arc::new(AdminFrontEnd::new(Arc::clone(&self.service)));
        let stopping = async {
            shutdown.await;
            self.service.stopping.send_replace(true);
        };
        tokio::select! {
            () = accept(listener, &self.gate, front_end, stopping) => {}
            () = publish_events(&self.service) => {}
        }
    }
}
