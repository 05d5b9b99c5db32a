//! The errors of a store.

#[cfg(feature = "redis")]
use super::redis::RedisErrorCode;
use std::fmt;

/// The error that kept a store from doing what it was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no connection to it. The operator has to restore it.
    Unavailable,
    /// It did not reply before the deadline. The outcome is unknown.
    Timeout,
    /// The connection broke before it replied. The outcome is unknown.
    ConnectionLost,
    /// The call arrived after its deadline, and the server did nothing.
    DeadlinePassed,
    /// The queue is full, or the request is too large; the store was not called.
    Overloaded,
    /// The circuit breaker is open; the store was not called.
    BreakerOpen,
    /// Another charge had denied the request already; this one was not sent.
    Skipped,
    /// The key holds a value that no limit wrote. It was not changed.
    ForeignValue,
    /// The reply cannot be parsed. The outcome is unknown.
    InvalidReply,
    /// The server returned this error.
    #[cfg(feature = "redis")]
    Server(RedisErrorCode),
}

impl StoreError {
    /// True if the store certainly did nothing.
    pub const fn is_definite(self) -> bool {
        !matches!(self, Self::Timeout | Self::ConnectionLost | Self::InvalidReply)
    }

    /// Its code in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::ConnectionLost => "connection_lost",
            Self::DeadlinePassed => "deadline_passed",
            Self::Overloaded => "overloaded",
            Self::BreakerOpen => "breaker_open",
            Self::Skipped => "skipped",
            Self::ForeignValue => "foreign_value",
            Self::InvalidReply => "invalid_reply",
            #[cfg(feature = "redis")]
            Self::Server(code) => code.name(),
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unavailable => "the store cannot be reached",
            Self::Timeout => "the store did not reply before the deadline",
            Self::ConnectionLost => "the connection to the store broke before it replied",
            Self::DeadlinePassed => "the deadline passed before the store was reached; it did nothing",
            Self::Overloaded => "too many requests wait for the store",
            Self::BreakerOpen => "circuit breaker open; the store was not called",
            Self::Skipped => "skipped: the request was already denied",
            Self::ForeignValue => "the key holds a value that no limit wrote",
            Self::InvalidReply => "the store sent an invalid reply",
            #[cfg(feature = "redis")]
            Self::Server(code) => return write!(f, "the store returned an error: {}", code.name()),
        })
    }
}

impl std::error::Error for StoreError {}
