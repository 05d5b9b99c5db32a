//! Settings that a running server takes from a changed configuration; the others wait for a restart.

use crate::compat::ratelimit;
use crate::config::{AdminSettings, AlertSettings, ControlSettings, RawSettings, StoreSettings};
use crate::rule_source::ConfigSnapshot;
use crate::server::auth::tokens::{Keyring, Tokens};
use crate::server::gate::Gate;
use crate::server::store::AnyStore;
use crate::server::telemetry::otlp::OtlpSettings;
use std::sync::Arc;

/// The parts of a server that settings change while it runs, and the settings it was started with.
pub struct LiveSettings {
    /// Its store takes `mode`, its answers the modes of `ratelimit`.
    pub gate: Arc<Gate>,
    /// The settings at the start.
    pub started_with: Arc<RawSettings>,
    /// The store settings at the start.
    pub store: StoreSettings,
    /// The control plane at the start.
    pub control: ControlSettings,
    /// The admin API at the start.
    pub admin: AdminSettings,
    /// Alerts at the start.
    pub alerts: AlertSettings,
    /// The collector of metrics at the start; none: there was none.
    pub otlp: Option<OtlpSettings>,
    /// Callers' tokens; none if it was started without: then callers need none until a restart.
    pub tokens: Option<Arc<Keyring>>,
    /// The password of the Redis protocol; the same holds.
    pub resp_password: Option<Arc<Keyring>>,
}

impl LiveSettings {
    /// Takes what can change, and reports what needs a restart.
    pub fn apply(&self, snapshot: &ConfigSnapshot) {
        let config = &snapshot.config;
        let mut changed = snapshot.raw.changed_since(&self.started_with);
        let tokens = replace(self.tokens.as_deref(), config.tokens.as_ref());
        if tokens == Replaced::Yes {
            let count = config.tokens.as_ref().map_or(0, Tokens::len);
            tracing::info!(tokens = count, "tokens reloaded");
        }
        let password = replace(self.resp_password.as_deref(), config.resp_password.as_ref());
        if password == Replaced::Yes {
            tracing::info!("auth.resp_password reloaded; authenticated connections stay");
        }
        if tokens != Replaced::AfterRestart && password != Replaced::AfterRestart {
            changed.retain(|name| name != "auth");
        }
        if let (AnyStore::Redis(shared), StoreSettings::Redis(current)) = (self.gate.store(), &config.store) {
            // The store mode is for emergencies, so it changes at once.
            shared.set_mode(current.fallback.mode);
            if let StoreSettings::Redis(initial) = &self.store {
                if initial.differs_only_in_mode(current) {
                    changed.retain(|name| name != "store");
                } else if !changed.iter().any(|name| name == "store") {
                    // The file of a password has changed.
                    changed.push("store".into());
                }
                if !initial.has_same_key_secret(current) && !changed.iter().any(|name| name.starts_with("key_secret")) {
                    changed.push("key_secret_file".into());
                }
                if initial.ratelimit_counters != current.ratelimit_counters {
                    changed.push(format!("{}.counters", ratelimit::SETTING));
                }
            }
        }
        // The settings are the same, and a file that they name has changed.
        for (name, is_same) in [
            ("control", self.control == config.control),
            ("admin", self.admin == config.admin_settings),
            ("alerts", self.alerts == config.alerts),
            ("telemetry", self.otlp == config.otlp),
        ] {
            if !is_same && !changed.iter().any(|known| known == name) {
                changed.push(name.into());
            }
        }
        if !changed.is_empty() {
            tracing::warn!(
                settings = changed.join(", "),
                "changed settings take effect only after a restart"
            );
        }
        self.gate.compat().set_modes(config.ratelimit_modes.clone());
    }
}

/// The effect of changed secrets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replaced {
    Yes,
    Unchanged,
    /// Requiring a secret, or not, is decided at the start.
    AfterRestart,
}

fn replace(keyring: Option<&Keyring>, tokens: Option<&Tokens>) -> Replaced {
    match (keyring, tokens) {
        (Some(keyring), Some(tokens)) if keyring.replace(tokens.clone()) => Replaced::Yes,
        (Some(_), Some(_)) | (None, None) => Replaced::Unchanged,
        (Some(_), None) | (None, Some(_)) => Replaced::AfterRestart,
    }
}
