//! The error codes of Redis and Valkey.

/// The code of a server's error, its first word, as far as it is a known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named as the server writes it")]
pub enum RedisErrorCode {
    ReadOnly,
    Loading,
    MasterDown,
    ClusterDown,
    Moved,
    Ask,
    TryAgain,
    CrossSlot,
    NoScript,
    NoFunction,
    OutOfMemory,
    Misconf,
    NoReplicas,
    Busy,
    NoAuth,
    WrongPass,
    NoPerm,
    MaxClients,
    WrongType,
    /// Any other code.
    Other,
}

impl RedisErrorCode {
    /// All codes, each at the index that equals its number.
    pub const ALL: [Self; 20] = [
        Self::ReadOnly,
        Self::Loading,
        Self::MasterDown,
        Self::ClusterDown,
        Self::Moved,
        Self::Ask,
        Self::TryAgain,
        Self::CrossSlot,
        Self::NoScript,
        Self::NoFunction,
        Self::OutOfMemory,
        Self::Misconf,
        Self::NoReplicas,
        Self::Busy,
        Self::NoAuth,
        Self::WrongPass,
        Self::NoPerm,
        Self::MaxClients,
        Self::WrongType,
        Self::Other,
    ];

    /// Returns the code of an error by its first word and the text behind it.
    pub fn from_error(code: &str, rest: &str) -> Self {
        match code {
            "READONLY" => Self::ReadOnly,
            "LOADING" => Self::Loading,
            "MASTERDOWN" => Self::MasterDown,
            "CLUSTERDOWN" => Self::ClusterDown,
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CROSSSLOT" => Self::CrossSlot,
            "NOSCRIPT" => Self::NoScript,
            "OOM" => Self::OutOfMemory,
            "MISCONF" => Self::Misconf,
            "NOREPLICAS" => Self::NoReplicas,
            "BUSY" => Self::Busy,
            "NOAUTH" => Self::NoAuth,
            "WRONGPASS" => Self::WrongPass,
            "NOPERM" => Self::NoPerm,
            "WRONGTYPE" => Self::WrongType,
            "ERR" if rest.starts_with("Function not found") => Self::NoFunction,
            "ERR" if rest.starts_with("max number of clients") => Self::MaxClients,
            "ERR" => Self::from_script_error(rest),
            _ => Self::Other,
        }
    }

    /// Returns the code of an error inside a script. The oldest servers put it behind a text of their own, and no server
    /// has a code for what the script's user may not do.
    fn from_script_error(text: &str) -> Self {
        if text.contains("The user executing the script can't") || text.starts_with("ACL failure in script") {
            return Self::NoPerm;
        }
        match text.rsplit_once(": -") {
            Some((_, inner)) if text.starts_with("Error running script") => {
                let (code, _) = inner.split_once(' ').unwrap_or((inner, ""));
                Self::from_error(code, "")
            }
            _ => Self::Other,
        }
    }

    /// Its name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::MasterDown => "masterdown",
            Self::ClusterDown => "clusterdown",
            Self::Moved => "moved",
            Self::Ask => "ask",
            Self::TryAgain => "tryagain",
            Self::CrossSlot => "crossslot",
            Self::NoScript => "noscript",
            Self::NoFunction => "nofunction",
            Self::OutOfMemory => "oom",
            Self::Misconf => "misconf",
            Self::NoReplicas => "noreplicas",
            Self::Busy => "busy",
            Self::NoAuth => "noauth",
            Self::WrongPass => "wrongpass",
            Self::NoPerm => "noperm",
            Self::MaxClients => "maxclients",
            Self::WrongType => "wrongtype",
            Self::Other => "other",
        }
    }
}
