//! Settings of the admin API, as the operator writes them.

use crate::control::model::{Digest, Role};
use crate::names::names;
use std::fmt;
use std::path::PathBuf;

/// Settings of the admin API, as the operator writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSettings {
    /// The URL under which browsers reach it behind a proxy.
    pub external_url: Option<ExternalUrl>,
    /// Access over loopback without a credential.
    pub anonymous: AnonymousAccess,
    /// Subjects as viewers see them.
    pub subjects: SubjectDisplay,
    /// Tokens of the settings.
    pub tokens: Vec<AdminToken>,
    /// The folder that the files of the dashboard are read from, in place of those in the program; for development.
    pub ui_dir: Option<PathBuf>,
}

/// The parts of an external URL that requests are compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalUrl {
    /// True for https.
    pub is_https: bool,
    /// The host, with the port if it is written.
    pub authority: String,
}

/// A token of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminToken {
    /// Its name.
    pub name: String,
    /// The SHA-256 of the token.
    pub sha256: Digest,
    /// Its role.
    pub role: Role,
    /// The domains it is limited to; empty: all.
    pub domains: Vec<String>,
}

impl fmt::Display for ExternalUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl AdminToken {
    /// True for an admin of all domains.
    pub(crate) fn is_full_admin(&self) -> bool {
        self.role == Role::Admin && self.domains.is_empty()
    }
}

/// Access over loopback without a credential.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnonymousAccess {
    /// A viewer by the printed link, until the first principal exists.
    #[default]
    Auto,
    /// A viewer.
    Viewer,
    /// An admin: for demos.
    Admin,
    /// None.
    None,
}

/// Subjects as viewers see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubjectDisplay {
    /// Their first characters.
    #[default]
    Masked,
    /// Not at all.
    Hidden,
    /// As they are.
    Plain,
}

impl AnonymousAccess {
    names! { "auto" => Auto, "viewer" => Viewer, "admin" => Admin, "none" => None }
}

impl SubjectDisplay {
    names! { "masked" => Masked, "hidden" => Hidden, "plain" => Plain }

    /// The text of a subject's value.
    pub(crate) fn show(self, value: &str) -> String {
        match self {
            Self::Plain => value.to_owned(),
            Self::Hidden => "***".to_owned(),
            Self::Masked => {
                let shown = if value.chars().count() > 4 { 2 } else { 0 };
                let start: String = value.chars().take(shown).collect();
                format!("{start}***")
            }
        }
    }
}

/// True for a name that a principal or a token of the settings may have. Those of actors that are neither are reserved.
pub(crate) fn is_principal_name(name: &str) -> bool {
    let is_valid = |character: char| character.is_alphanumeric() || "._-@+".contains(character);
    let is_reserved = ["system", "anonymous", "view", "setup", "offline"].contains(&name);
    (1..=64).contains(&name.len()) && name.chars().all(is_valid) && !is_reserved
}

/// The names that are accepted.
pub(crate) const PRINCIPAL_NAMES: &str = "1 to 64 letters, digits and `._-@+`; `system` and the like are reserved";
