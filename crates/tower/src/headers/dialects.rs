//! The choice of rate limit headers.

use std::fmt;

/// The dialects in use: at most one of the drafts, and at most one under the older `X-` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialects {
    draft: Option<Dialect>,
    older: Option<Dialect>,
}

/// One form of rate limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `RateLimit-Policy` and `RateLimit` as in the IETF's drafts 08 to 11.
    Ietf,
    /// The next draft as its editors have announced it.
    IetfNext,
    /// Draft 07: `RateLimit: limit=100, remaining=42, reset=17`.
    Draft07,
    /// Drafts 04 to 06: `RateLimit-Limit`, `-Remaining`, `-Reset` and `-Policy`.
    Draft06,
    /// Drafts 00 to 03: the policy in `RateLimit-Limit`.
    Draft03,
    /// `X-RateLimit-*` as Envoy writes it.
    XEnvoy,
    /// `X-RateLimit-*` with the remaining seconds.
    XDelta,
    /// `X-RateLimit-*` with a Unix time, as GitHub does.
    XUnix,
}

impl Dialects {
    /// No rate limit headers at all.
    pub const NONE: Self = Self {
        draft: None,
        older: None,
    };

    /// The dialects of these names; `none` is no dialect.
    ///
    /// # Errors
    /// An unknown name, or two dialects that write the same headers.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, DialectError> {
        let mut dialects = Self::NONE;
        let mut silent = false;
        for name in names {
            if name == NONE {
                silent = true;
                continue;
            }
            let dialect = Dialect::from_name(name).ok_or_else(|| DialectError::Unknown(name.into()))?;
            let slot = if dialect.is_draft() {
                &mut dialects.draft
            } else {
                &mut dialects.older
            };
            if let Some(other) = slot.replace(dialect) {
                return Err(DialectError::Conflict(other, dialect));
            }
        }
        match dialects.draft.or(dialects.older) {
            Some(other) if silent => Err(DialectError::NoneWith(other)),
            _ => Ok(dialects),
        }
    }

    /// Without the `X-` names, which Envoy writes itself: the header would be sent twice.
    pub const fn without_x_names(self) -> Self {
        Self { older: None, ..self }
    }

    /// The dialects in use.
    pub fn iter(self) -> impl Iterator<Item = Dialect> {
        self.draft.into_iter().chain(self.older)
    }
}

impl Default for Dialects {
    fn default() -> Self {
        Self {
            draft: Some(Dialect::Ietf),
            older: Some(Dialect::XDelta),
        }
    }
}

impl Dialect {
    /// Every dialect with its name in settings.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("ietf", Self::Ietf),
        ("ietf-next", Self::IetfNext),
        ("draft07", Self::Draft07),
        ("draft06", Self::Draft06),
        ("draft03", Self::Draft03),
        ("x-envoy", Self::XEnvoy),
        ("x-delta", Self::XDelta),
        ("x-unix", Self::XUnix),
    ];

    fn from_name(name: &str) -> Option<Self> {
        let (_, dialect) = Self::NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*dialect)
    }

    const fn is_draft(self) -> bool {
        !matches!(self, Self::XEnvoy | Self::XDelta | Self::XUnix)
    }
}

const NONE: &str = "none";

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, dialect)| dialect == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// An invalid choice of dialects. The operator can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectError {
    /// No dialect has this name.
    Unknown(Box<str>),
    /// These two write the same headers.
    Conflict(Dialect, Dialect),
    /// `none` and another one.
    NoneWith(Dialect),
}

impl fmt::Display for DialectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => {
                let names = Dialect::NAMES.map(|(name, _)| name).join(", ");
                write!(f, "unknown header dialect `{name}`; choose from {names}, or {NONE}")
            }
            Self::Conflict(first, second) => {
                write!(f, "`{first}` and `{second}` write the same headers; keep one of them")
            }
            Self::NoneWith(other) => write!(f, "`{NONE}` and `{other}` exclude each other; keep one of them"),
        }
    }
}

impl std::error::Error for DialectError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_dialects() {
        assert_eq!(Dialects::from_names(["ietf", "x-delta"]), Ok(Dialects::default()));
        assert_eq!(Dialects::from_names(["none"]), Ok(Dialects::NONE));
        assert_eq!(Dialects::from_names([]), Ok(Dialects::NONE));
        for (name, dialect) in Dialect::NAMES {
            let chosen: Vec<Dialect> = Dialects::from_names([name]).unwrap().iter().collect();
            assert_eq!(chosen, [dialect]);
            assert_eq!(dialect.to_string(), name);
        }
    }

    #[test]
    fn what_shares_header_names_is_not_sent_together() {
        for (names, error) in [
            (
                &["ietf", "draft07"][..],
                DialectError::Conflict(Dialect::Ietf, Dialect::Draft07),
            ),
            (
                &["x-unix", "x-envoy"],
                DialectError::Conflict(Dialect::XUnix, Dialect::XEnvoy),
            ),
            (&["ietf", "ietf"], DialectError::Conflict(Dialect::Ietf, Dialect::Ietf)),
            (&["none", "ietf"], DialectError::NoneWith(Dialect::Ietf)),
            (&["x-delta", "none"], DialectError::NoneWith(Dialect::XDelta)),
            (&["etf"], DialectError::Unknown("etf".into())),
        ] {
            assert_eq!(Dialects::from_names(names.iter().copied()), Err(error));
        }
    }
}
