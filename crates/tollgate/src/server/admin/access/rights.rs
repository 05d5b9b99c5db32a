//! Rights, the roles that include them, and the caller that has them.

use crate::control::model::{Digest, Role};

/// A right of the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::admin) enum Right {
    View,
    Subjects,
    Explain,
    Forget,
    Override,
    Audit,
    Edit,
    Admin,
}

/// The access that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::admin) enum Access {
    /// No credential.
    Open,
    /// No credential: the request brings one, and is limited like a login.
    Login,
    /// Any valid credential.
    Any,
    /// A right.
    Needs(Right),
    /// A right; any credential while the rules are those that are built in.
    NeedsBeyondQuickstart(Right),
}

/// The kind of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::admin) enum CallerKind {
    User,
    Token,
    /// A token of the settings.
    Settings,
    /// Without a credential, as `admin.anonymous` allows.
    Anonymous,
    /// By the printed link.
    View,
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server::admin) struct Caller {
    /// The id of the principal; of a name space of its own for callers that are none.
    pub(in crate::server::admin) id: String,
    pub(in crate::server::admin) name: String,
    pub(in crate::server::admin) kind: CallerKind,
    pub(in crate::server::admin) role: Role,
    /// The domains it is limited to; empty: all.
    pub(in crate::server::admin) domains: Vec<String>,
    /// Its session, if it has one.
    pub(in crate::server::admin) session: Option<Digest>,
}

impl Right {
    /// All rights, from the least role to the highest.
    pub(in crate::server::admin) const ALL: [Self; 8] = [
        Self::View,
        Self::Subjects,
        Self::Explain,
        Self::Forget,
        Self::Override,
        Self::Audit,
        Self::Edit,
        Self::Admin,
    ];

    /// Its name in the API.
    pub(in crate::server::admin) const fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Subjects => "subjects",
            Self::Explain => "explain",
            Self::Forget => "forget",
            Self::Override => "override",
            Self::Audit => "audit",
            Self::Edit => "edit",
            Self::Admin => "admin",
        }
    }

    /// The least role that includes it.
    pub(in crate::server::admin) const fn least_role(self) -> Role {
        match self {
            Self::View => Role::Viewer,
            Self::Subjects | Self::Explain | Self::Forget | Self::Override | Self::Audit => Role::Operator,
            Self::Edit => Role::Editor,
            Self::Admin => Role::Admin,
        }
    }
}

impl Access {
    /// Its name in the OpenAPI document.
    pub(in crate::server::admin) const fn name(self) -> &'static str {
        match self {
            Self::Open => "none",
            Self::Login => "login",
            Self::Any => "any",
            Self::Needs(right) | Self::NeedsBeyondQuickstart(right) => right.name(),
        }
    }
}

impl CallerKind {
    /// Its name in the API.
    pub(in crate::server::admin) const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Token => "token",
            Self::Settings => "settings",
            Self::Anonymous => "anonymous",
            Self::View => "view",
        }
    }
}

impl Caller {
    /// A caller that is no principal of the database.
    pub(in crate::server::admin) fn without_principal(kind: CallerKind, name: &str, role: Role) -> Self {
        Self {
            id: format!("{}:{name}", kind.name()),
            name: name.to_owned(),
            kind,
            role,
            domains: Vec::new(),
            session: None,
        }
    }

    /// True if its role includes a right.
    pub(in crate::server::admin) fn has(&self, right: Right) -> bool {
        self.role >= right.least_role()
    }

    /// True if it may see and change a domain.
    pub(in crate::server::admin) fn covers(&self, domain: &str) -> bool {
        self.domains.is_empty() || self.domains.iter().any(|known| known == domain)
    }

    /// True if it is limited to some domains.
    pub(in crate::server::admin) fn is_restricted(&self) -> bool {
        !self.domains.is_empty()
    }
}

/// The name of a role in the API.
pub(in crate::server::admin) const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Editor => "editor",
        Role::Admin => "admin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_the_rights_of_the_ones_before_it() {
        let rights = |role| {
            let caller = Caller::without_principal(CallerKind::User, "a", role);
            let names: Vec<&str> = Right::ALL
                .iter()
                .filter(|right| caller.has(**right))
                .map(|right| right.name())
                .collect();
            names.join(" ")
        };
        assert_eq!(rights(Role::Viewer), "view");
        assert_eq!(rights(Role::Operator), "view subjects explain forget override audit");
        assert_eq!(rights(Role::Editor), "view subjects explain forget override audit edit");
        assert_eq!(
            rights(Role::Admin),
            "view subjects explain forget override audit edit admin"
        );
    }

    #[test]
    fn a_caller_of_some_domains_covers_those_only() {
        let mut caller = Caller::without_principal(CallerKind::Token, "a", Role::Editor);
        assert!(caller.covers("any"));
        caller.domains = vec!["default".into()];
        assert!(caller.covers("default") && !caller.covers("other"));
    }
}
